import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import PIL.Image
import pytest
import torch

from fedsim.data import FederatedData, ImageFolder, ImageSet, image_set
from fedsim.data.tensors import TensorImages
from fedsim.errors import ConfigError


@pytest.fixture
def decodes(monkeypatch) -> list[object]:
    """Everything that was decoded, in order."""
    seen: list[object] = []
    original = image_set.decode

    def counting(content, size):
        seen.append(content)
        return original(content, size)

    monkeypatch.setattr(image_set, "decode", counting)
    return seen


@pytest.fixture
def root(write_folder):
    return write_folder({"cat": 10, "dog": 10})


@pytest.fixture
def switching_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def whole(root, **settings) -> ImageSet:
    return FederatedData(ImageFolder(root, 0.0, 0.0), None, image_size=8, **settings).train


def test_pictures_labels_and_ids_belong_together(root):
    held = whole(root)
    assert len(held) == 20
    assert held.labels.dtype == torch.int64
    for position in (0, 7, 19):
        with PIL.Image.open(root / held.ids[position]) as picture:
            colour = np.array(picture.convert("RGB"))[0, 0]
        decoded = held.images([position])
        assert decoded.dtype == torch.float32
        assert np.array_equal((decoded[0, :, 4, 4] * 255).round().numpy(), colour)
        assert held.labels[position] == (0 if held.ids[position].startswith("cat/") else 1)


def test_positions_may_be_a_list_a_range_or_a_tensor_in_any_order(root):
    held = whole(root)
    pictures = held.images(range(20))
    assert pictures.min() >= 0
    assert pictures.max() <= 1
    assert held.images(torch.tensor([3, 1, 3])).equal(pictures[[3, 1, 3]])
    assert held.images([19, 0]).equal(pictures[[19, 0]])
    assert held.images([-1]).equal(pictures[19:])
    assert held.images([]).shape == (0, 3, 8, 8)


def test_a_digest_is_of_files_names_and_labels_and_decodes_nothing(root, decodes):
    held = whole(root)
    before = held.digest(), held.digest(10)
    assert (whole(root).digest(), whole(root).digest(10)) == before
    assert held.subset([1, 0]).digest() != held.subset([0, 1]).digest()
    with (root / held.ids[1]).open("ab") as file:
        file.write(b"more")
    assert whole(root).digest() != before[0]
    assert whole(root).digest(10) == before[1], "every second one is read"
    relabelled = held.subset(range(20))
    relabelled.labels = 1 - relabelled.labels
    assert relabelled.digest() != held.digest()
    (root / held.ids[3]).unlink()
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        held.digest()
    assert not decodes


def test_uncached_pictures_are_the_same_and_leave_the_cache_as_it_is(root, decodes):
    held = whole(root)
    first = held.uncached().images([0, 1])
    assert held.images([0, 1]).equal(first)
    assert held.uncached().subset([1]).images([0]).equal(first[1:])
    assert len(decodes) == 5


def test_a_digest_of_images_in_memory_is_of_their_numbers():
    images = torch.arange(2 * 3 * 4).reshape(2, 3, 2, 2) / 24
    digests = {TensorImages(one, torch.tensor([0, 1])).digest() for one in (images, images.clone(), images.flip(-1))}
    assert len(digests) == 2
    assert TensorImages(images[:0], torch.zeros(0, dtype=torch.int64)).digest(4)


def test_a_position_outside_the_set(root):
    with pytest.raises(IndexError):
        whole(root).images([20])


def test_each_picture_is_decoded_once(root, decodes):
    held = whole(root)
    held.images([0, 1, 0])
    assert len(decodes) == 2
    for _ in range(3):
        held.images(range(20))
    assert len(decodes) == 20


def test_the_cache_is_shared_between_a_client_and_the_training_set(root, decodes):
    data = FederatedData(ImageFolder(root), None, image_size=8)
    data.client(0).images(range(16))
    data.train.images(range(16))
    assert len(decodes) == 16
    data.test.images([0])
    data.auxiliary.images([0])
    assert len(decodes) == len(set(decodes)) == 18


def test_clients_pictures_take_no_room_from_the_servers_own(root, decodes):
    data = FederatedData(ImageFolder(root), None, image_size=8, cache_bytes=3 * 8 * 8)
    data.train.images(range(16))
    decodes.clear()
    assert data.test.images([0]).equal(data.test.images([0]))
    assert len(decodes) == 1


def test_beyond_the_budget_pictures_are_decoded_again_and_equal(root, decodes):
    expected = whole(root).images(range(20))
    decodes.clear()
    held = whole(root, cache_bytes=5 * 3 * 8 * 8)
    assert held.images(range(20)).equal(expected)
    held.images(range(5))
    assert len(decodes) == 20
    assert held.images([19]).equal(expected[19:])
    assert len(decodes) == 21


def test_without_a_cache(root, decodes):
    held = whole(root, cache_bytes=0)
    assert held.images([2]).equal(held.images([2]))
    assert len(decodes) == 2


@pytest.mark.parametrize("cache_bytes", [3 * 3 * 8 * 8, 2**20])
def test_threads_read_the_same_pictures(root, cache_bytes, switching_often):
    expected = whole(root).images(range(20))
    for _ in range(5):
        held = whole(root, cache_bytes=cache_bytes)
        with ThreadPoolExecutor(4) as pool:
            for pictures in pool.map(lambda _, held=held: held.images(range(20)), range(8)):
                assert pictures.equal(expected)


def test_a_truncated_picture_is_named(write_folder):
    root = write_folder({"cat": 2, "dog": 2})
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    victim = root / "dog" / "001.png"
    PIL.Image.fromarray(noise).save(victim)
    victim.write_bytes(victim.read_bytes()[:2000])
    held = whole(root)  # the header is whole
    with pytest.raises(ConfigError, match=r"dog/001\.png: this picture cannot be decoded: .*truncated"):
        held.images(range(4))


def test_a_picture_that_vanishes_is_named(root):
    held = whole(root)
    (root / held.ids[5]).unlink()
    with pytest.raises(ConfigError, match=held.ids[5]):
        held.images([5])
