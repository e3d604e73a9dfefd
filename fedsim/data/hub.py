"""A data set of the Hugging Face hub, or a local folder that `datasets` can read."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from datasets import ClassLabel, Dataset, DatasetDict, Image, Value, load_dataset, load_from_disk
from datasets.exceptions import DatasetNotFoundError, DatasetsError

from fedsim.data.pictures import one_line
from fedsim.data.sources import Splits, divide
from fedsim.errors import ConfigError, nearest

LABEL_NAMES = ("label", "labels", "class", "target", "y")
TEST_NAMES = ("test", "validation", "valid", "val")
SAVED = ("dataset_dict.json", "state.json")
"""Files that `save_to_disk` leaves, of several splits and of one, which `load_dataset` does not read."""


@dataclass(frozen=True)
class Hub:
    """Pictures by `datasets`, without any code of the data set's own.

    Attributes:
        name: `owner/name` on the hub, or a local folder of parquet files, of pictures, or as `save_to_disk` leaves it.
        subset: which of several configurations.
        image_column: by default the only column of pictures.
        label_column: by default the only column of classes, or else a column called `label`.
        natural_id_column: kept as `natural_id`, for `partition=natural`.
        train_split: the split that clients and auxiliary pictures are taken from.
        test_split: by default the first labelled one of test, validation, valid and val; where there is none,
            `test_fraction` of the training split.
        revision: a commit of the hub's repository: without one, the data may change under the same configuration.
        cache_dir: where downloads are kept; by default where Hugging Face keeps them.
    """

    name: str | None
    subset: str | None = None
    image_column: str | None = None
    label_column: str | None = None
    natural_id_column: str | None = None
    train_split: str = "train"
    test_split: str | None = None
    test_fraction: float | int = 0.1
    auxiliary_fraction: float | int = 0.1
    revision: str | None = None
    seed: int = 0
    cache_dir: str | None = None

    def load(self) -> Splits:
        """Raises `ConfigError`: unreachable, unknown subset, split or column, no pictures, unlabelled pictures."""
        if not self.name:
            raise ConfigError("data.name", self.name, "a data set of the hub, as in data.name=uoft-cs/cifar10")
        with self._failures():
            splits = self._read(self.name)
        if self.train_split not in splits:
            raise ConfigError("data.train_split", self.train_split, _one_of(self.train_split, splits))
        train = splits[self.train_split]
        image, label = self._image_column(train), self._label_column(train)
        class_names = _class_names(train, label)
        test = self._test_split(splits, label)

        whole = self._columns(train, self.train_split, image, label, class_names)
        rows = divide(whole["label"][:], 0.0 if test else self.test_fraction, self.auxiliary_fraction, self.seed)
        if test:
            test_set = self._columns(splits[test], test, image, label, class_names)
            test_set = test_set.select(divide(test_set["label"][:], 0.0, 0.0, self.seed).train)
        else:
            test_set = whole.select(rows.test)
        return Splits(whole.select(rows.train), test_set, whole.select(rows.auxiliary), class_names)

    def _read(self, name: str) -> DatasetDict:
        local = Path(name).expanduser()
        name = str(local) if local.exists() else name
        if not any(Path(name, mark).is_file() for mark in SAVED):
            return load_dataset(name, self.subset, revision=self.revision, cache_dir=self.cache_dir)
        if self.subset is not None:
            raise ConfigError("data.subset", self.subset, f"null: {name} was saved as one data set")
        if self.revision is not None:
            raise ConfigError("data.revision", self.revision, f"null: {name} is a folder, as it is now")
        saved = load_from_disk(name).with_format(None)
        return saved if isinstance(saved, DatasetDict) else DatasetDict({self.train_split: saved})

    def _image_column(self, dataset: Dataset) -> str:
        images: list[str] = [name for name, feature in dataset.features.items() if isinstance(feature, Image)]
        if self.image_column is not None:
            if self.image_column not in images:
                raise ConfigError(
                    "data.image_column", self.image_column, _one_of(self.image_column, images, "columns of pictures")
                )
            return self.image_column
        if len(images) != 1:
            found = (
                f"its columns of pictures are {', '.join(images)}"
                if images
                else f"has no column of pictures, only {', '.join(dataset.column_names)}"
            )
            raise ConfigError("data.name", self.name, fault=f"{found}; data.image_column chooses one")
        return str(images[0])

    def _label_column(self, dataset: Dataset) -> str:
        if self.label_column is not None:
            if self.label_column not in dataset.column_names:
                raise ConfigError(
                    "data.label_column", self.label_column, _one_of(self.label_column, dataset.column_names)
                )
            return self.label_column
        classes: list[str] = [name for name, feature in dataset.features.items() if isinstance(feature, ClassLabel)]
        candidates = classes or [name for name in LABEL_NAMES if name in dataset.column_names]
        if len(candidates) != 1:
            columns = ", ".join(candidates or dataset.column_names)
            raise ConfigError("data.label_column", None, f"the column of labels of {self.name}, one of {columns}")
        return str(candidates[0])

    def _test_split(self, splits: DatasetDict, label: str) -> str | None:
        if self.test_split is not None:
            if self.test_split not in splits or self.test_split == self.train_split:
                others = [name for name in splits if name != self.train_split]
                raise ConfigError("data.test_split", self.test_split, _one_of(self.test_split, others))
            return self.test_split
        for name in TEST_NAMES:
            if name in splits and name != self.train_split and label in splits[name].column_names:
                labels = splits[name][label][:]
                if labels and not any(_is_missing(value) for value in labels):
                    return name
        return None

    def _columns(self, dataset: Dataset, split: str, image: str, label: str, class_names: tuple[str, ...]) -> Dataset:
        """The columns of `Splits`, pictures untouched on disk."""
        natural_id = self.natural_id_column if split == self.train_split else None  # nobody divides the other one
        for key, column in (("image_column", image), ("label_column", label), ("natural_id_column", natural_id)):
            if column is not None and column not in dataset.column_names:
                raise ConfigError(
                    f"data.{key}", column, _one_of(column, dataset.column_names, f"columns of split {split}")
                )
        labels = dataset[label][:]
        if missing := sum(_is_missing(value) for value in labels):
            raise ConfigError(
                "data.name", self.name, fault=f"{missing} pictures of split {split} have no label in {label}"
            )
        feature = dataset.features[label]
        numbered = isinstance(feature, ClassLabel)
        if not numbered or tuple(feature.names) != class_names:  # splits may number their classes differently
            names = feature.int2str(labels) if numbered else [str(value) for value in labels]
            number = {name: index for index, name in enumerate(class_names)}
            if unknown := sorted(set(names) - number.keys()):
                raise ConfigError(
                    "data.name", self.name, fault=f"split {split} has labels that training lacks: {unknown[0]}"
                )
            labels = [number[name] for name in names]
        columns = dataset.select_columns([image])
        if image != "image":
            columns = columns.rename_column(image, "image")
        columns = columns.add_column("label", labels, feature=ClassLabel(names=list(class_names)))
        columns = columns.add_column(
            "id", [f"{split}/{row:07d}" for row in range(len(labels))], feature=Value("string")
        )
        if natural_id is not None:
            columns = columns.add_column("natural_id", dataset[natural_id][:])
        return columns

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """What `load_dataset` raises is a matter of the name, the subset or the network: say which, in one line."""
        try:
            yield
        except DatasetNotFoundError as error:
            raise ConfigError(
                "data.name", self.name, fault=f"the hub has no such data set: {one_line(error)}"
            ) from error
        except (ConnectionError, httpx.HTTPError) as error:
            expected = f"cannot reach the hub: {one_line(error)}; a local folder works offline"
            raise ConfigError("data.name", self.name, fault=expected) from error
        except ValueError as error:
            key, value = ("data.subset", self.subset) if "onfig" in str(error) else ("data.name", self.name)
            raise ConfigError(key, value, fault=f"cannot load {self.name}: {one_line(error)}") from error
        except (DatasetsError, OSError, RuntimeError) as error:
            raise ConfigError("data.name", self.name, fault=f"cannot be loaded: {one_line(error)}") from error


def _class_names(dataset: Dataset, label: str) -> tuple[str, ...]:
    feature = dataset.features[label]
    if isinstance(feature, ClassLabel):
        return tuple(feature.names)
    plain = isinstance(feature, Value)  # others cannot be asked for their unique values
    values = [value for value in dataset.unique(label) if value is not None] if plain else []
    if not plain or not all(isinstance(value, int | str) for value in values):
        raise ConfigError("data.label_column", label, f"a column of classes, integers or strings, not {feature}")
    return tuple(str(value) for value in sorted(values))


def _is_missing(label: object) -> bool:
    return label is None or label == -1


def _one_of(value: str, options: DatasetDict | Sequence[str], kind: str = "") -> str:
    names = list(options)
    if not names:
        return f"left out: there are no {kind or 'others'}"
    return f"one of {', '.join(names)}{f', the {kind}' if kind else ''}.{nearest(value, names)}"
