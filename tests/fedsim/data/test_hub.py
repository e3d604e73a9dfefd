import datasets
import PIL.Image
import pytest
from datasets import ClassLabel, Dataset, Features, Image, Value

from fedsim.data import FederatedData
from fedsim.data import hub as hub_module
from fedsim.data.hub import Hub
from fedsim.errors import ConfigError


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_MODULES_CACHE", str(tmp_path / "modules"))


@pytest.fixture
def write_parquet(tmp_path):
    """Writes splits of twenty pictures, `train=labels` …, as a hub repository keeps them."""
    root = tmp_path / "repository"

    def write(label_feature, image="img", label="label", extra=None, **splits):
        (root / "data").mkdir(parents=True, exist_ok=True)
        for split, labels in splits.items():
            pictures = [PIL.Image.new("RGB", (8, 8), (number, 0, 0)) for number in range(len(labels))]
            columns = {image: pictures, label: labels, "writer": [f"w{number % 4}" for number in range(len(labels))]}
            features = {image: Image(), label: label_feature, "writer": Value("string")}
            for name, (feature, value) in (extra or {}).items():
                columns[name], features[name] = [value] * len(labels), feature
            Dataset.from_dict(columns, features=Features(features)).to_parquet(
                root / "data" / f"{split}-00000-of-00001.parquet"
            )
        return str(root)

    return write


def refusal(name, **settings) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        Hub(name, **settings).load()
    assert "\n" not in str(caught.value)
    return caught.value


CLASSES = ClassLabel(names=["owl", "rat"])
TWENTY = [0, 1] * 10


def test_columns_are_found_by_type(write_parquet):
    data = FederatedData(Hub(write_parquet(CLASSES, train=TWENTY, test=[0, 1, 1])), None, image_size=8)
    assert data.class_names == ("owl", "rat")
    assert (len(data.train), len(data.test), len(data.auxiliary)) == (18, 3, 2)
    assert sorted(data.train.ids + data.auxiliary.ids) == [f"train/{number:07d}" for number in range(20)]
    reds = (data.train.images(range(18))[:, 0, 0, 0] * 255).round().int().tolist()
    assert reds == [int(name[-2:]) for name in data.train.ids]
    assert data.train.labels.tolist() == [number % 2 for number in reds]


def test_what_save_to_disk_leaves_is_read_too(write_parquet, tmp_path, monkeypatch):
    """`load_dataset` refuses one split, and takes the files of several for a table of settings."""
    from_hub = Hub(write_parquet(CLASSES, train=TWENTY, test=[0, 1, 1]), natural_id_column="writer")
    splits = datasets.load_dataset(from_hub.name)
    splits.with_format("numpy").save_to_disk(str(tmp_path / "both"))
    splits["train"].save_to_disk(str(tmp_path / "one"))
    expected, both = from_hub.load(), Hub(str(tmp_path / "both"), natural_id_column="writer").load()
    for name in ("train", "test", "auxiliary"):
        assert getattr(both, name).to_dict() == getattr(expected, name).to_dict()
    one = Hub(str(tmp_path / "one"), test_fraction=0.2).load()
    assert (len(one.train), len(one.test), len(one.auxiliary)) == (14, 4, 2)
    assert refusal(str(tmp_path / "one"), subset="plain").key == "data.subset"
    assert refusal(str(tmp_path / "one"), revision="main").key == "data.revision"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Hub("~/one", test_fraction=0.2).load().train.to_dict() == one.train.to_dict()


def test_without_a_labelled_test_split_the_training_split_is_divided(write_parquet):
    name = write_parquet(CLASSES, train=TWENTY, test=[-1, -1])
    splits = Hub(name, test_fraction=0.2, seed=1).load()
    assert (len(splits.train), len(splits.test), len(splits.auxiliary)) == (14, 4, 2)
    ids = splits.train["id"][:] + splits.test["id"][:] + splits.auxiliary["id"][:]
    assert len(set(ids)) == 20
    assert Hub(name, test_fraction=0.2, seed=1).load().train["id"][:] == splits.train["id"][:]
    assert Hub(name, test_fraction=0.2, seed=2).load().train["id"][:] != splits.train["id"][:]


def test_labels_of_strings_and_of_numbers_become_classes(write_parquet):
    splits = Hub(write_parquet(Value("string"), train=["rat", "owl"] * 10)).load()
    assert splits.class_names == ("owl", "rat")
    assert {row["label"] for row in splits.train} == {0, 1}


def test_numbers_become_classes_in_numerical_order(write_parquet):
    splits = Hub(write_parquet(Value("int64"), train=[10, 9] * 10, test=[9])).load()
    assert splits.class_names == ("9", "10")
    assert splits.test["label"][:] == [0]


def split(labels, names, **columns):
    pictures = [PIL.Image.new("RGB", (8, 8))] * len(labels)
    features = Features({"img": Image(), "label": ClassLabel(names=names), **dict.fromkeys(columns, Value("string"))})
    return Dataset.from_dict({"img": pictures, "label": labels, **columns}, features=features)


def test_classes_that_the_test_split_numbers_differently_keep_their_names(tmp_path):
    train = split(TWENTY, ["owl", "rat"])
    folder = str(tmp_path / "saved")
    datasets.DatasetDict(train=train, test=split([0, 0, 1], ["rat", "owl"])).save_to_disk(folder)
    splits = Hub(folder).load()
    assert splits.class_names == ("owl", "rat")
    assert sorted(splits.test["label"][:]) == [0, 1, 1]
    folder = str(tmp_path / "other")
    datasets.DatasetDict(train=train, test=split([0, 1], ["rat", "cow"])).save_to_disk(folder)
    assert "split test has labels that training lacks: cow" in str(refusal(folder))


def test_natural_ids_are_asked_of_the_clients_images_alone(tmp_path):
    train = split(TWENTY, ["owl", "rat"], writer=["a", "b"] * 10)
    datasets.DatasetDict(train=train, test=split([0, 1], ["owl", "rat"])).save_to_disk(str(tmp_path / "saved"))
    splits = Hub(str(tmp_path / "saved"), natural_id_column="writer").load()
    assert set(splits.train["natural_id"][:]) == {"a", "b"}
    assert len(splits.test) == 2


def test_natural_ids_are_kept(write_parquet):
    from flwr_datasets.partitioner import NaturalIdPartitioner

    source = Hub(write_parquet(CLASSES, train=TWENTY), natural_id_column="writer")
    data = FederatedData(source, NaturalIdPartitioner("natural_id"), image_size=8)
    data.check()
    assert data.num_partitions == 4
    for name in data.client(2).ids:
        assert int(name[-2:]) % 4 == 2


def test_a_folder_of_pictures_loads_too(write_folder):
    splits = Hub(str(write_folder({"train/owl": 6, "train/rat": 6, "test/owl": 2, "test/rat": 2}))).load()
    assert splits.class_names == ("owl", "rat")
    assert len(splits.test) == 4


def test_no_name():
    assert refusal(None).key == "data.name"


def test_not_on_the_hub(monkeypatch):
    error = refusal("nobody/nothing-of-the-kind")
    assert str(error).startswith("data.name=nobody/nothing-of-the-kind: cannot reach the hub")


@pytest.mark.parametrize(
    ("raised", "key", "message"),
    [
        (
            datasets.exceptions.DatasetNotFoundError("Dataset 'a/b' doesn't exist on the Hub"),
            "data.name",
            "no such data",
        ),
        (ConnectionError("Couldn't reach the Hugging Face Hub"), "data.name", "cannot reach the hub"),
        (hub_module.httpx.ConnectTimeout("timed out"), "data.name", "cannot reach the hub"),
        (RuntimeError("Dataset scripts are no longer supported, but found b.py"), "data.name", "scripts are no longer"),
        (datasets.exceptions.DatasetGenerationError("An error\nof two lines"), "data.name", "An error"),
        (ValueError("BuilderConfig 'x' not found. Available: ['y', 'z']"), "data.subset", "Available: ['y', 'z']"),
    ],
)
def test_what_loading_raises_is_one_line(monkeypatch, raised, key, message):
    def fail(*_, **__):
        raise raised

    monkeypatch.setattr(hub_module, "load_dataset", fail)
    error = refusal("a/b", subset="x")
    assert error.key == key
    assert message in str(error)


def test_an_unknown_subset(write_parquet):
    error = refusal(write_parquet(CLASSES, train=TWENTY), subset="nope")
    assert (error.key, error.value) == ("data.subset", "nope")


def test_no_pictures(tmp_path):
    root = tmp_path / "texts"
    root.mkdir()
    Dataset.from_dict({"text": ["a"], "label": [0]}).to_parquet(root / "train.parquet")
    error = refusal(str(root))
    assert "has no column of pictures, only text, label" in str(error)
    assert refusal(str(root), image_column="text").key == "data.image_column"


def test_a_wrong_image_column_names_the_right_one(write_parquet):
    error = refusal(write_parquet(CLASSES, train=TWENTY), image_column="image")
    assert str(error).startswith("data.image_column=image: must be one of img, the columns of pictures")


def test_two_image_columns_must_be_chosen_from(write_parquet):
    name = write_parquet(CLASSES, extra={"mask": (Image(), PIL.Image.new("L", (8, 8)))}, train=TWENTY)
    assert "img, mask" in str(refusal(name))
    assert len(Hub(name, image_column="mask").load().train) == 16


@pytest.mark.parametrize(
    ("kind", "labels"), [(datasets.List(CLASSES), [[0], [0, 1]]), ({"a": CLASSES}, [{"a": 0}] * 2)]
)
def test_a_column_of_several_labels_for_each_picture_is_refused(write_parquet, kind, labels):
    error = refusal(write_parquet(kind, train=labels * 10))
    assert (error.key, error.value) == ("data.label_column", "label")
    assert error.expected.startswith("a column of classes, integers or strings, not ")


def test_two_label_columns_must_be_chosen_from(write_parquet):
    name = write_parquet(CLASSES, extra={"coarse": (ClassLabel(names=["animal"]), 0)}, train=TWENTY)
    assert "label, coarse" in str(refusal(name))
    assert Hub(name, label_column="coarse").load().class_names == ("animal",)
    assert refusal(name, label_column="lable").key == "data.label_column"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_split": "trian"}, "data.train_split=trian: must be one of train, test. Did you mean 'train'?"),
        ({"test_split": "dev"}, "data.test_split=dev: must be one of test."),
        ({"natural_id_column": "user"}, "data.natural_id_column=user: must be one of"),
        ({"auxiliary_fraction": 1.0}, "data.auxiliary_fraction=1.0"),
    ],
)
def test_settings_that_cannot_work(write_parquet, settings, message):
    assert str(refusal(write_parquet(CLASSES, train=TWENTY, test=TWENTY), **settings)).startswith(message)


def test_unlabelled_training_pictures_are_counted(write_parquet):
    error = refusal(write_parquet(CLASSES, train=[0, -1, 1, -1]))
    assert "2 pictures of split train have no label in label" in str(error)


def test_a_label_that_training_lacks(write_parquet):
    error = refusal(write_parquet(Value("string"), train=["owl"] * 4, test=["yak"]))
    assert "split test has labels that training lacks: yak" in str(error)
