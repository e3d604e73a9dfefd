import itertools
import logging
import os
import time

import pytest

from fedsim.data import FederatedData, ImageFolder
from fedsim.errors import ConfigError


def ids(splits):
    return [splits.train["id"][:], splits.test["id"][:], splits.auxiliary["id"][:]]


def refusal(*arguments, **settings):
    with pytest.raises(ConfigError) as caught:
        ImageFolder(*arguments, **settings).load()
    assert "\n" not in str(caught.value)
    assert caught.value.key == "data.path"
    return str(caught.value)


def test_class_folders_are_divided(write_folder):
    root = write_folder({"cat": 10, "dog": 10, "eel": 10})
    splits = ImageFolder(root, test_fraction=0.2, auxiliary_fraction=0.1).load()
    assert splits.class_names == ("cat", "dog", "eel")
    assert [len(part) for part in ids(splits)] == [21, 6, 3]
    assert sorted(itertools.chain(*ids(splits))) == [
        f"{name}/{n:03d}.png" for name in splits.class_names for n in range(10)
    ]
    for row in splits.train:
        assert splits.class_names[row["label"]] == row["id"].split("/")[0]
        assert row["image"].size == (10, 8)


@pytest.mark.parametrize("held_out", ["val", "valid", "validation", "test", "Val"])
def test_train_and_test_folders(write_folder, held_out):
    root = write_folder({"train/cat": 10, "train/dog": 10, f"{held_out}/cat": 3, f"{held_out}/dog": 4})
    splits = ImageFolder(root, auxiliary_fraction=0.2).load()
    train, test, auxiliary = ids(splits)
    assert (len(train), len(auxiliary)) == (16, 4)
    assert len(test) == 7
    assert all(name.startswith(f"{held_out}/") for name in test)
    assert all(name.startswith("train/") for name in train + auxiliary)


@pytest.mark.parametrize("only", ["train", "val"])
def test_a_single_split_folder_is_the_whole_set(write_folder, only):
    splits = ImageFolder(write_folder({f"{only}/cat": 10, f"{only}/dog": 10})).load()
    assert splits.class_names == ("cat", "dog")
    assert [len(part) for part in ids(splits)] == [16, 2, 2]


def test_of_two_test_folders_val_counts(write_folder, caplog):
    root = write_folder({"train/cat": 4, "test/cat": 1, "val/cat": 2})
    with caplog.at_level(logging.WARNING):
        assert len(ImageFolder(root).load().test) == 2
    assert "not used: test" in caplog.text


def test_a_second_training_folder_is_no_test_set(write_folder, caplog):
    root = write_folder({"train/cat": 18, "train/dog": 18, "training/cat": 9, "training/dog": 9})
    with caplog.at_level(logging.WARNING):
        assert [len(part) for part in ids(ImageFolder(root).load())] == [28, 4, 4]
    assert "not used: training" in caplog.text
    write_folder({"val/cat": 2, "val/dog": 1})
    assert len(ImageFolder(root).load().test) == 3


def test_a_test_folder_without_classes_is_not_one(write_folder, caplog):
    with caplog.at_level(logging.WARNING):
        splits = ImageFolder(write_folder({"train/cat": 9, "train/dog": 9, "test": 3})).load()
    assert all(name.startswith("train/") for part in ids(splits) for name in part)
    assert "not used: test, only train" in caplog.text


@pytest.mark.parametrize("loose", [["train"], ["train", "test"]])
@pytest.mark.parametrize("beside", [{}, {"docs": 0}, {"samples": 3}])
def test_a_loose_picture_in_a_split_folder_leaves_it_one(write_folder, loose, beside):
    splits = {"train/cat": 9, "train/dog": 9, "test/cat": 2, "test/dog": 2}
    root = write_folder(splits | dict.fromkeys(loose, 1) | beside)
    train, test, _ = ids(ImageFolder(root).load())
    assert all(name.startswith("train/") for name in train)
    assert all(name.startswith("test/") for name in test)


@pytest.mark.parametrize("deeper", ["", "/hospital-1"])
def test_class_folders_beside_a_test_folder_are_not_passed_over(write_folder, deeper):
    message = refusal(write_folder({f"ill{deeper}": 9, f"well{deeper}": 9, "test/ill": 3, "test/well": 3}))
    assert "ill, with pictures, lies beside test; expected class folders alone, or train and test" in message


def test_a_class_may_be_called_train(write_folder):
    assert ImageFolder(write_folder({"train": 4, "bus": 4})).load().class_names == ("bus", "train")


def test_pictures_deeper_in_a_class_folder(write_folder):
    root = write_folder({"train/n01/images": 5, "train/n02/images": 5})
    assert ImageFolder(root).load().class_names == ("n01", "n02")


@pytest.mark.parametrize("extension", ["jpg", "jpeg", "JPG", "png", "bmp", "webp", "ppm", "tif", "tiff"])
def test_formats(write_folder, extension):
    data = FederatedData(ImageFolder(write_folder({"a": 3, "b": 3}, extension)), None, image_size=8)
    assert data.train.images([0, 1]).shape == (2, 3, 8, 8)


def test_a_folder_that_may_not_be_read_is_named(write_folder, monkeypatch):
    root = write_folder({"ill/first": 4, "ill/second": 4, "well": 4})
    scan = os.scandir

    def guarded(path):
        if str(path).endswith("second"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", guarded)
    assert f"cannot be read: {root / 'ill' / 'second'} (Permission denied)" in refusal(root)


def test_hidden_and_foreign_files_are_ignored(write_folder):
    root = write_folder({"cat": 4, "dog": 4, ".thumbnails": 2})
    (root / "cat" / "._000.png").write_bytes(b"resource fork")
    (root / "cat" / "notes.txt").write_text("no picture")
    splits = ImageFolder(root).load()
    assert splits.class_names == ("cat", "dog")
    assert sum(map(len, ids(splits))) == 8


def test_same_seed_same_splits(write_folder):
    root = write_folder({"cat": 20, "dog": 20})
    assert ids(ImageFolder(root, seed=1).load()) == ids(ImageFolder(str(root), seed=1).load())
    assert ids(ImageFolder(root, seed=1).load()) != ids(ImageFolder(root, seed=2).load())


@pytest.mark.parametrize("path", [None, ""])
def test_no_path(path):
    assert f"data.path={path}: must be a folder with one folder per class" in refusal(path)


def test_no_such_folder(tmp_path):
    assert f"data.path={tmp_path / 'gone'}: no such folder" in refusal(tmp_path / "gone")


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "set.zip").write_bytes(b"")
    assert "set.zip: is a file, not a folder" in refusal(tmp_path / "set.zip")


def test_an_empty_folder(tmp_path):
    assert "holds no class folders" in refusal(tmp_path)


def test_loose_pictures(write_folder):
    root = write_folder({"loose": 3})
    assert "holds pictures, but no class folders" in refusal(root / "loose")


def test_split_folders_with_loose_pictures(write_folder):
    message = refusal(write_folder({"train": 3, "test": 3}))
    assert "/test: holds pictures, but no class folders" in message


def test_an_empty_class_is_named(write_folder):
    message = refusal(write_folder({"train/cat": 3, "train/axolotl": 0, "val/cat": 1}))
    assert "no pictures in class folder axolotl" in message
    assert "jpeg" in message


def test_a_class_that_training_lacks_is_named(write_folder):
    assert "val has class folders that train lacks: newt" in refusal(write_folder({"train/cat": 3, "val/newt": 1}))


def test_broken_files_are_named_and_counted(write_folder):
    root = write_folder({"cat": 8, "dog": 8})
    for number in range(5):
        (root / "dog" / f"{number:03d}.png").write_bytes(b"this is no picture")
    message = refusal(root)
    assert "5 files cannot be read as a picture" in message
    assert "dog/000.png" in message
    assert "and 2 more" in message
    assert "dog/004.png" not in message
    assert len(ImageFolder(root, verify=False).load().train) > 0


def test_a_file_name_that_is_not_utf8(write_folder):
    root = write_folder({"cat": 3, "dog": 3})
    try:
        (root / "cat" / "000.png").rename(root / "cat" / "f\udcfflat.png")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    assert "a file name is not UTF-8" in refusal(root, verify=False)


@pytest.mark.shared_data
def test_imagenet_sample(imagenet_sample):
    start = time.perf_counter()
    data = FederatedData(ImageFolder(imagenet_sample), None, image_size=224)
    assert time.perf_counter() - start < 10
    assert data.num_classes >= 100
    assert all(name.startswith("val/") for name in data.train.ids)
    assert len(data.test) > 0
    assert len(data.auxiliary) > 0
    pictures = data.train.images(range(8))
    assert pictures.shape == (8, 3, 224, 224)
    assert pictures.std() > 0.1


@pytest.mark.shared_data
def test_cifar10_sample(cifar10_sample):
    start = time.perf_counter()
    data = FederatedData(ImageFolder(cifar10_sample), None, image_size=32)
    assert time.perf_counter() - start < 20
    assert data.class_names[:2] == ("airplane", "automobile")
    assert not set(data.train.ids) & (set(data.test.ids) | set(data.auxiliary.ids))
    assert all(name.startswith("val/") for name in data.test.ids)
