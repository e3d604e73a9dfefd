"""From a file to pixels, once."""

import contextlib
import functools
import io
import logging
import struct
import threading

import numpy as np
import PIL.Image
import PIL.ImageOps
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

logger = logging.getLogger(__name__)

# What Pillow raises for a file that is no picture, is cut short, or is larger than any real picture.
UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, struct.error, PIL.Image.DecompressionBombError)

SLAB = 2**24
"""Bytes of pictures that lie side by side; of a larger piece of memory an unfinished end would be lost."""


def decode(content: str | bytes, size: int) -> UInt8[Tensor, "3 {size} {size}"]:
    """Read a picture (a path, or the file's bytes) as RGB, upright, `size` pixels square.

    Where the size differs, the shorter side is resized to `size` (bicubic, antialiased) and the centre cut out.
    Transparency is dropped, 16-bit grey keeps its upper byte, 8 bits in a picture of 16 or 32 stay.

    Raises:
        one of `UNREADABLE`: the content is no whole picture.
    """
    with PIL.Image.open(io.BytesIO(content) if isinstance(content, bytes) else content) as opened:
        image = upright_rgb(opened)
    width, height = image.size
    if (width, height) != (size, size):
        scale = size / min(width, height)
        width, height = max(size, round(width * scale)), max(size, round(height * scale))
        left, top = (width - size) // 2, (height - size) // 2
        image = image.resize((width, height), PIL.Image.Resampling.BICUBIC)
        image = image.crop((left, top, left + size, top + size))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def one_line(error: BaseException) -> str:
    """The first line of what a library says, short enough to quote."""
    lines = str(error).strip().splitlines()
    first = lines[0] if lines else type(error).__name__
    return first if len(first) <= 200 else f"{first[:200]}…"


class ImageCache:
    """Decoded pictures of one size by key, the first ones up to `max_bytes`. Safe between threads.

    None makes room for another: pass after pass through more pictures than there is room for would find none of them.
    They lie side by side, so that a batch of small ones is gathered at once: one by one takes as long as a layer.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._slots: dict[tuple[str, int], int] = {}
        self._slabs: list[UInt8[np.ndarray, "_ 3 h w"]] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._slots)

    def slot(self, key: tuple[str, int]) -> int:
        """Where this key's picture is; -1 where it is not kept."""
        with self._lock:
            return self._slots.get(key, -1)

    def at(self, slots: Int64[np.ndarray, " b"]) -> UInt8[Tensor, "b 3 h w"]:
        """Copies of the pictures there."""
        size = len(self._slabs[0])
        first = slots.min() // size
        if slots.max() // size > first:
            return torch.from_numpy(np.stack([self._slabs[slot // size][slot % size] for slot in slots]))
        return torch.from_numpy(self._slabs[first][slots - first * size])

    def put(self, key: tuple[str, int], picture: UInt8[Tensor, "3 h w"]) -> None:
        """Keep a picture where there is room."""
        with self._lock:
            if key in self._slots or self.num_bytes + picture.nbytes > self.max_bytes:
                return
            size = max(1, min(SLAB, self.max_bytes) // picture.nbytes)
            slot = len(self._slots)
            if slot == size * len(self._slabs):
                self._slabs.append(np.empty((size, *picture.shape), np.uint8))
            self._slabs[-1][slot % size] = picture.numpy()
            self._slots[key] = slot
            self.num_bytes += picture.nbytes


def upright_rgb(image: PIL.Image.Image) -> PIL.Image.Image:
    """Without transparency; 16-bit grey keeps its upper byte, 8 bits in a picture of 16 or 32 stay.

    Raises:
        one of `UNREADABLE`: pixels of more than 16 bits, or broken data.
    """
    image.load()  # says once that data are broken, and then no more
    with contextlib.suppress(*UNREADABLE):  # where the EXIF block is damaged nobody can tell how it is turned
        image = PIL.ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise ValueError("pixels are floating-point numbers; 8 or 16 bits can be read")
    if image.mode.startswith("I"):
        levels = np.asarray(image).astype(np.int64)
        if levels.max() >= 2**16:
            raise ValueError("pixels have more than 16 bits; 8 or 16 can be read")
        if 0 < (brightest := levels.max()) < 2**12:
            _warn_of_few_bits(brightest > 255)
        if brightest > 255:
            levels >>= 8  # Pillow would clip 16 bits at 255: nearly everything white
        return PIL.Image.fromarray(levels.clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "P":
        # By way of RGBA, because Pillow warns about palettes with transparency.
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")


@functools.cache
def _warn_of_few_bits(black: bool) -> None:
    """Once in a process."""
    read = "12 bits or fewer and is read as nearly black" if black else "8 bits or fewer and is read as one of 8"
    logger.warning("a 16-bit grey picture holds %s: stretch %s to all 16", read, "it" if black else "a set of more")
