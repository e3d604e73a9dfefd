"""What every source of pictures gives, and how one set is divided into train, test and auxiliary."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64

from fedsim.determinism import derive_seed
from fedsim.errors import ConfigError

if TYPE_CHECKING:
    from datasets import Dataset, Features


@dataclass(frozen=True)
class Splits:
    """Three data sets with the columns `image` (Image), `label` (ClassLabel) and `id` (string).

    Further columns are natural ids for a partitioner.

    Attributes:
        train: what the clients hold, already in random order: a contiguous piece of it is an IID sample.
        test: what the server evaluates with.
        auxiliary: pictures that no client holds, for attacks that learn from public data; may be empty.
    """

    train: "Dataset"
    test: "Dataset"
    auxiliary: "Dataset"
    class_names: tuple[str, ...]


@runtime_checkable
class Source(Protocol):
    """Anything that loads the same splits in every process; it raises `ConfigError` where it cannot."""

    def load(self) -> Splits: ...


@dataclass(frozen=True)
class Rows:
    """Row numbers of one set, disjoint and together all of it, each part in random order."""

    train: Int64[np.ndarray, " train"]
    test: Int64[np.ndarray, " test"]
    auxiliary: Int64[np.ndarray, " auxiliary"]


def divide(labels: Sequence[int], test_fraction: float | int, auxiliary_fraction: float | int, seed: int) -> Rows:
    """Divide a labelled set, stratified: each class gives its share up to rounding.

    Every picture gets the place (rank + u) / n within its class of n, ranks random and u one draw a class; the
    lowest places are the test set, the next the auxiliary set. A class with one picture thus goes anywhere at
    random; where the fractions leave room for it, one picture of every class is kept for training.

    Raises:
        ConfigError: fractions outside [0, 1), or nothing left to train with.
    """
    for key, fraction in (("test_fraction", test_fraction), ("auxiliary_fraction", auxiliary_fraction)):
        if not isinstance(fraction, int | float) or not 0 <= fraction < 1:
            raise ConfigError(f"data.{key}", fraction, "a fraction from 0 up to, not including, 1")
    count = len(labels)
    num_test, num_auxiliary = _share(test_fraction, count), _share(auxiliary_fraction, count)
    held_out = num_test + num_auxiliary
    if held_out >= count:
        raise ConfigError(
            "data.test_fraction",
            test_fraction,
            f"so small that, with auxiliary_fraction={auxiliary_fraction}, training pictures are left of {count}",
        )

    rng = np.random.default_rng(derive_seed(seed, "divide"))
    classes, class_of = np.unique(np.asarray(labels), return_inverse=True)
    sizes = np.bincount(class_of, minlength=len(classes))
    shuffled = rng.permutation(count)
    by_class = shuffled[np.argsort(class_of[shuffled], kind="stable")]
    sizes_by_row = sizes[class_of[by_class]]
    rank = np.arange(count) - (np.cumsum(sizes) - sizes)[class_of[by_class]]
    place = (rank + rng.random(len(classes))[class_of[by_class]]) / sizes_by_row
    if count - len(classes) >= held_out:
        place[rank == sizes_by_row - 1] += 1
    order = by_class[np.argsort(place, kind="stable")]
    test, auxiliary, train = np.split(order, [num_test, held_out])
    return Rows(*(rng.permutation(part).astype(np.int64) for part in (train, test, auxiliary)))


def features(class_names: Sequence[str]) -> "Features":
    """The columns that every split has."""
    from datasets import ClassLabel, Features, Image, Value

    return Features({"image": Image(), "label": ClassLabel(names=list(class_names)), "id": Value("string")})


def _share(fraction: float | int, count: int) -> int:
    return max(1, round(fraction * count)) if fraction > 0 else 0
