"""The pictures that one party holds."""

import copy
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float32, Int64
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

    def __len__(self) -> int:
        return len(self.ids)

    def images(self, indices: Sequence[int] | Int64[Tensor, " b"]) -> Float32[Tensor, "b 3 h w"]:
        """The pictures at these positions of the set (not rows of the data set), in [0, 1].

        Raises:
            ConfigError: a file cannot be decoded; names it.
            IndexError: a position outside the set.
        """
        places = range(len(self))
        positions = [places[index] for index in (indices.tolist() if isinstance(indices, Tensor) else indices)]
        if not positions:
            return torch.zeros(0, 3, self._image_size, self._image_size)
        keys = [(self._split, self._rows[position]) for position in positions]
        if (found := self._cache.gather(keys)) is not None:  # as in all rounds but the first
            return found.float().div_(255)
        kept = {position: self._cache.get(key) for position, key in zip(positions, keys, strict=True)}
        images = {position: image for position, image in kept.items() if image is not None}
        missing = [position for position in dict.fromkeys(positions) if position not in images]
        # A few at a time, so that the compressed files of a large set are never all in memory.
        for start in range(0, len(missing), CHUNK):
            chunk = missing[start : start + CHUNK]
            for position, file in zip(chunk, self._files[chunk]["image"], strict=True):
                images[position] = self._decode(position, file)
                self._cache.put((self._split, self._rows[position]), images[position])
        return torch.stack([images[position] for position in positions]).float() / 255

    def subset(self, positions: Sequence[int]) -> "ImageSet":
        """The pictures at these positions as a set of their own, in this order, with the same cache."""
        chosen = copy.copy(self)
        chosen.labels = self.labels[list(positions)]
        chosen.ids = tuple(self.ids[position] for position in positions)
        chosen._files = self._files.select(positions)
        chosen._rows = tuple(self._rows[position] for position in positions)
        return chosen

    def uncached(self) -> "ImageSet":
        """The same pictures, none of which is kept when it is decoded."""
        chosen = copy.copy(self)
        chosen._cache = ImageCache(0)
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
