"""A source divided among clients."""

import contextlib
import copy
import logging
import threading
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from fedsim.data.image_set import ImageSet
from fedsim.data.pictures import ImageCache, one_line
from fedsim.data.sources import Source
from fedsim.errors import ConfigError

if TYPE_CHECKING:
    # Both bring pandas along, the second matplotlib besides: only who reads or divides pictures needs them.
    from datasets import Dataset
    from flwr_datasets.partitioner import Partitioner

# What Flower's partitioners raise for settings that the data cannot satisfy: among them a division by an empty shard.
REFUSALS = (ValueError, KeyError, IndexError, TypeError, AssertionError, ArithmeticError)

logger = logging.getLogger(__name__)


CACHE_BYTES = 4 * 2**30


class FederatedData:
    """Who holds which pictures: the same in every process that builds it from the same configuration.

    The partitioner works on labels and natural ids alone, so partitions cost no decoding. It is copied: one object
    may serve several `FederatedData`. Without a partitioner a single client holds the whole training set.
    Decoded pictures are kept, as bytes, up to `cache_bytes` for all clients together, and as many for all others.

    Args:
        divided: `partitions` of another process that has the same data; no partitioner is asked then.
    """

    def __init__(
        self,
        source: Source,
        partitioner: "Partitioner | None",
        image_size: int,
        cache_bytes: int = CACHE_BYTES,
        divided: Sequence[list[int]] | None = None,
    ) -> None:
        if image_size < 1:
            raise ConfigError("image_size", image_size, "a positive number of pixels")
        if cache_bytes < 0:
            raise ConfigError("cache_bytes", cache_bytes, "a number of bytes, 0 for no cache")
        self._splits = source.load()
        self._partitioner = copy.deepcopy(partitioner)
        self._image_size = image_size
        self._cache, self._cache_of_others = ImageCache(cache_bytes), ImageCache(cache_bytes)
        self._clients: dict[int, ImageSet] = {}
        self._divided = divided
        self._indices: dict[int, list[int]] = {}
        self._lock = threading.RLock()  # partitioners compute on first use, and are not made for threads
        if self._partitioner is not None:
            self._partitioner.dataset = _without_images(self._splits.train)

    @property
    def class_names(self) -> tuple[str, ...]:
        return self._splits.class_names

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @cached_property
    def num_partitions(self) -> int:
        """Raises `ConfigError` where the training set cannot be divided as asked."""
        if self._divided is not None:
            return len(self._divided)
        if self._partitioner is None:
            return 1
        # The public property divides at once, and its refusal names no number.
        asked = vars(self._partitioner).get("_num_partitions")
        self._check_enough(asked)
        with self._lock, self._refusals():
            count = int(self._partitioner.num_partitions)
        self._check_enough(count)
        return count

    def client(self, partition_id: int) -> ImageSet:
        """Raises `ConfigError`: no such partition, or an empty one."""
        with self._lock:
            if partition_id not in self._clients:
                self._clients[partition_id] = self._image_set("train", self._partition(partition_id))
            return self._clients[partition_id]

    def partition_sizes(self) -> list[int]:
        return [len(rows) for rows in self.partitions()]

    def partitions(self) -> list[list[int]]:
        """Which rows of the training set each client holds."""
        return [self._partition(partition_id) for partition_id in range(self.num_partitions)]

    @cached_property
    def train(self) -> ImageSet:
        """Everything that the clients hold together, and what a partitioner left over."""
        return self._image_set("train", range(len(self._splits.train)))

    @cached_property
    def test(self) -> ImageSet:
        return self._image_set("test", range(len(self._splits.test)))

    @cached_property
    def auxiliary(self) -> ImageSet:
        """Pictures that no client holds; may be empty."""
        return self._image_set("auxiliary", range(len(self._splits.auxiliary)))

    def check(self, num_clients: int | None = None) -> None:
        """Divide the training set now, and refuse what cannot work.

        Raises:
            ConfigError: more clients than pictures, settings that the partitioner refuses, a client without
                pictures, or more clients (`num_clients`) than partitions.
        """
        if num_clients is not None and num_clients > self.num_partitions:
            raise ConfigError("num_clients", num_clients, self._at_most())
        sizes, available = self.partition_sizes(), len(self._splits.train)
        if left_over := available - sum(sizes):
            logger.warning("%s leaves %d of %d training pictures to no client", self._name, left_over, available)
        if idle := sum(sizes[num_clients:]) if num_clients is not None else 0:
            words = "num_clients=%d of %d partitions: %d of %d training pictures belong to no client"
            logger.warning(words, num_clients, len(sizes), idle, available)

    @property
    def _name(self) -> str:
        return type(self._partitioner).__name__

    def _image_set(self, split: str, rows: range | list[int]) -> ImageSet:
        cache = self._cache if split == "train" else self._cache_of_others
        return ImageSet(getattr(self._splits, split), rows, self._image_size, cache, split)

    def _partition(self, partition_id: int) -> list[int]:
        """Row numbers of the training set."""
        if partition_id < 0:
            raise ConfigError("partition_id", partition_id, f"from 0 to {self.num_partitions - 1}")
        if partition_id >= self.num_partitions:
            raise ConfigError("num_clients", partition_id + 1, self._at_most())
        if self._divided is not None:
            return self._divided[partition_id]
        if self._partitioner is None:
            return list(range(len(self._splits.train)))
        with self._lock:
            if partition_id not in self._indices:
                with self._refusals():
                    rows = self._partitioner.load_partition(partition_id)["row"][:]
                if not rows:
                    raise ConfigError(
                        "partition",
                        self._name,
                        fault=f"client {partition_id} of {self.num_partitions} would hold no picture of the "
                        f"{len(self._splits.train)} for training; take fewer clients or a more even partition",
                    )
                self._indices[partition_id] = rows
            return self._indices[partition_id]

    def _at_most(self) -> str:
        of = "there are" if self._partitioner is None else f"{self._name} makes of this data"
        return f"at most {self.num_partitions}, the number of partitions that {of}"

    def _check_enough(self, num_partitions: int | None) -> None:
        available = len(self._splits.train)
        if num_partitions is not None and num_partitions > available:
            raise ConfigError("num_clients", num_partitions, f"at most {available}, the number of training pictures")
        if num_partitions is not None and num_partitions < 1:
            raise ConfigError("num_clients", num_partitions, "at least 1")

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        """Turn what a partitioner raises into a `ConfigError`, and its warnings into log lines.

        Flower's partitioners warn for each repeated draw; the outcome is what counts, and `check` reports that.
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                yield
            except REFUSALS as error:
                divided_by_zero = isinstance(error, ArithmeticError)
                reason = "some client or shard would be empty" if divided_by_zero else one_line(error)
                advice = "Fewer clients (num_clients) may do, or a more even partition"
                if vars(self._partitioner).get("_partition_by", "label") not in self._splits.train.column_names:
                    advice = "partition.partition_by is label, or natural_id by data=hub data.natural_id_column=COLUMN"
                raise ConfigError(
                    "partition",
                    self._name,
                    fault=f"cannot divide {len(self._splits.train)} training pictures of {self.num_classes} classes: "
                    f"{reason.rstrip('.')}. {advice}",
                ) from error
        for warning in caught:
            logger.info("%s: %s", self._name, one_line(warning.message) if isinstance(warning.message, Warning) else "")


def _without_images(train: "Dataset") -> "Dataset":
    """Labels, natural ids and row numbers: no partitioner may decode a picture, or copy one, to sort the rows."""
    from datasets import Dataset, Value

    columns = [name for name in train.column_names if name not in ("image", "id")]
    features = train.select_columns(columns).features.copy()
    features["row"] = Value("int64")
    values = {name: train[name][:] for name in columns}
    return Dataset.from_dict({**values, "row": list(range(len(train)))}, features=features)
