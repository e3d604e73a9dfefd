"""The pictures that one party holds."""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor

from fedsim.data.pictures import UNREADABLE, ImageCache, decode, one_line
from fedsim.errors import ConfigError

if TYPE_CHECKING:
    from datasets import Dataset

CHUNK = 64


class ImageSet:
    """Labels and ids at once, pictures when asked for; what has been decoded stays in the cache.

    Attributes:
        labels: [n], int64.
        ids: names of the pictures, unique within the source.
    """

    def __init__(self, dataset: "Dataset", rows: Sequence[int], image_size: int, cache: ImageCache, split: str) -> None:
        """`rows` are row numbers of `dataset`; `split` tells its pictures from others in the same cache."""
        from datasets import Image

        held = dataset.select(rows)
        self.labels: Int64[Tensor, " n"] = torch.tensor(held["label"][:], dtype=torch.int64)
        self.ids: tuple[str, ...] = tuple(held["id"][:])
        self._files = held.select_columns(["image"]).cast_column("image", Image(decode=False))
        self._rows = tuple(rows)
        self._image_size = image_size
        self._cache = cache
        self._split = split
        # Where the cache has each picture; -1: nobody has looked, or it had none. Nothing leaves the cache.
        self._slots: Int64[np.ndarray, " n"] = np.full(len(self), -1)

    def __len__(self) -> int:
        return len(self.ids)

    def images(self, indices: Sequence[int] | Int64[Tensor, " b"]) -> Float32[Tensor, "b 3 h w"]:
        """The pictures at these positions of the set (not rows of the data set), in [0, 1].

        Raises:
            ConfigError: a file cannot be decoded; names it.
            IndexError: a position outside the set.
        """
        places = np.asarray(indices.cpu() if isinstance(indices, Tensor) else indices, np.int64)
        if not len(places):
            return torch.zeros(0, 3, self._image_size, self._image_size)
        slots = self._slots[places]
        if slots.min() < 0:  # in the first rounds
            decoded = self._fill(np.unique(np.arange(len(self))[places]).tolist())
            slots = self._slots[places]
            if slots.min() < 0:
                each = [self._kept(place, decoded) for place in np.arange(len(self))[places].tolist()]
                return torch.stack(each).float().div_(255)
        return self._cache.at(slots).float().div_(255)

    def _fill(self, places: Sequence[int]) -> dict[int, UInt8[Tensor, "3 h w"]]:
        """Decode those that are not kept, and look up again where all of them are; those that found no room."""
        missing, decoded = [place for place in places if not self._look_up(place)], {}
        # A few at a time, so that the compressed files of a large set are never all in memory.
        for start in range(0, len(missing), CHUNK):
            chunk = missing[start : start + CHUNK]
            for place, file in zip(chunk, self._files[chunk]["image"], strict=True):
                picture = self._decode(place, file)
                self._cache.put(self._key(place), picture)
                if not self._look_up(place):
                    decoded[place] = picture
        return decoded

    def _look_up(self, place: int) -> bool:
        """Whether the cache has it. What is known stays known: another thread may have found it since."""
        if (slot := self._cache.slot(self._key(place))) >= 0:
            self._slots[place] = slot
        return slot >= 0

    def _kept(self, place: int, decoded: Mapping[int, Tensor]) -> UInt8[Tensor, "3 h w"]:
        found = decoded.get(place)
        return self._cache.at(self._slots[[place]])[0] if found is None else found

    def _key(self, place: int) -> tuple[str, int]:
        return self._split, self._rows[place]

    def subset(self, positions: Sequence[int]) -> "ImageSet":
        """The pictures at these positions as a set of their own, in this order, with the same cache."""
        chosen = copy.copy(self)
        chosen.labels = self.labels[list(positions)]
        chosen.ids = tuple(self.ids[position] for position in positions)
        chosen._files = self._files.select(positions)
        chosen._rows = tuple(self._rows[position] for position in positions)
        chosen._slots = np.full(len(chosen), -1)
        return chosen

    def uncached(self) -> "ImageSet":
        """The same pictures, none of which is kept when it is decoded."""
        chosen = copy.copy(self)
        chosen._cache = ImageCache(0)
        chosen._slots = np.full(len(chosen), -1)
        return chosen

    def digest(self, sampled: int | None = None) -> str:
        """Of names, labels and files in their order; nothing is decoded.

        Args:
            sampled: read so many files, evenly spread; None: all.

        Raises:
            ConfigError: a file cannot be read.
        """
        found = hashlib.sha256(repr((self.ids, self.labels.tolist())).encode())
        every = range(0, len(self), 1 if sampled is None else max(1, -(-len(self) // sampled)))
        for start in range(0, len(every), CHUNK):
            chunk = every[start : start + CHUNK]
            for position, content in zip(chunk, self._contents(chunk), strict=True):
                found.update(f"{position}:{len(content)}:".encode() + content)
        return found.hexdigest()

    def _contents(self, positions: Sequence[int]) -> list[bytes]:
        try:
            return [
                file["bytes"] or (Path(file["path"]).read_bytes() if file["path"] else b"")
                for file in self._files[positions]["image"]
            ]
        except OSError as error:
            raise ConfigError("data", error.filename, fault=f"this picture cannot be read: {error.strerror}") from error

    def _decode(self, position: int, file: dict[str, str | bytes | None]) -> Tensor:
        content = file["bytes"] or file["path"]
        if not content:
            raise ConfigError("data", self.ids[position], fault="has neither a file nor content")
        try:
            return decode(content, self._image_size)
        except UNREADABLE as error:
            path = file["path"] or self.ids[position]
            raise ConfigError("data", path, fault=f"this picture cannot be decoded: {one_line(error)}") from error
