"""Pictures to files, and files into the page: nothing outside the run folder is ever read."""

import base64
import io
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from fedsim.storage.durable import replacing

LARGEST_SIDE = 224
"""Pixels; larger pictures are shown smaller."""

LARGEST_PNG = 24 * 1024
"""Bytes; a larger file is shown as JPEG, so that a page of photographs can still be mailed."""

TINY_SIDE = 96
"""Pixels below which a picture is enlarged without smoothing."""

THUMBNAIL_SIDE = 72
"""Pixels of a picture that the page holds back until it is asked for."""

STRIP_SIDE = 96
"""Pixels of one frame of a strip; larger ones are shown smaller."""


@dataclass(frozen=True)
class EmbeddedImage:
    """A picture inside the page: a `data:` URI and its size in pixels as it was on disk."""

    uri: str
    width: int
    height: int

    @property
    def tiny(self) -> bool:
        return max(self.width, self.height) < TINY_SIDE


def save_png(image: Float[Tensor, "channels height width"], path: Path) -> None:
    """Write one picture in [0, 1] with 256 levels; what lies outside is clamped, NaN becomes black."""
    picture = Image.fromarray(as_levels(image))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, durable=False) as partial:
        picture.save(partial, format="PNG")


def as_levels(image: Float[Tensor, "channels height width"]) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """[height, width] or [height, width, 3] of 256 levels; outside [0, 1] clamped, NaN black.

    Of more than three channels the first three are shown, of two the first.
    """
    image = image[:3] if len(image) >= 3 else image[:1]
    levels = (image.detach().cpu().double().nan_to_num(nan=0.0).clamp(0, 1) * 255).round().to(torch.uint8)
    array: np.ndarray[Any, np.dtype[np.uint8]] = levels.permute(1, 2, 0).numpy()
    return array[:, :, 0] if image.shape[0] == 1 else array


def path_inside(folder: Path, name: str | None) -> Path | None:
    """The file that a record names by a relative path, or None if it leaves the folder or does not exist.

    Absolute names, names with `..`, with backslashes or a drive, links that lead outside or in a circle, and names
    that no file can have are all refused.
    """
    if not name or "\\" in name or ":" in name or "\0" in name:
        return None
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        return None
    try:
        path = (folder / relative).resolve()
        return path if path.is_relative_to(folder.resolve()) and path.is_file() else None
    except (OSError, ValueError, RuntimeError):  # too long, no text of the file system's, a circle of links
        return None


def embed_thumbnail(folder: Path, name: str | None) -> EmbeddedImage | None:
    """`embed_image`, small in pixels and bytes; one that is as small already stays as it is."""
    return embed_image(folder, name, side=THUMBNAIL_SIDE, quality=75)


def embed_image(folder: Path, name: str | None, side: int = LARGEST_SIDE, quality: int = 90) -> EmbeddedImage | None:
    """The picture that a record names, ready for the page; None where it is missing, outside or no picture.

    Args:
        side: pixels; a larger picture is shown smaller.
        quality: of the JPEG that replaces a PNG too large in pixels or bytes.
    """
    path = path_inside(folder, name)
    if path is None:
        return None
    try:
        content = path.read_bytes()
        with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
            width, height = image.size
            small = side == LARGEST_SIDE or max(width, height) <= side
            if image.format == "PNG" and small and len(content) <= LARGEST_PNG:
                image.verify()
                return EmbeddedImage(data_uri(content, "image/png"), width, height)
            shown = image.convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None
    shown.thumbnail((side, side))
    buffer = io.BytesIO()
    shown.save(buffer, format="JPEG", quality=quality)
    return EmbeddedImage(data_uri(buffer.getvalue(), "image/jpeg"), width, height)


def embed_strip(folder: Path, name: str, frames: int) -> EmbeddedImage | None:
    """The strip of so many frames that a record names; width and height are those of one frame in the page.

    None where it is missing, outside or no such strip.
    """
    path = path_inside(folder, name)
    if path is None:
        return None
    try:
        with Image.open(path, formats=("PNG",)) as image:
            shown = image.convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None
    width, height = shown.width // frames, shown.height
    if shown.width != width * frames or width == 0:
        return None
    scale = STRIP_SIDE / max(width, height)
    if scale < 1:  # frame by frame: none may bleed into its neighbour
        size = max(1, round(width * scale)), max(1, round(height * scale))
        smaller = Image.new("RGB", (size[0] * frames, size[1]))
        for index in range(frames):
            frame = shown.crop((index * width, 0, (index + 1) * width, height))
            smaller.paste(frame.resize(size, Image.Resampling.LANCZOS), (index * size[0], 0))
        shown, (width, height) = smaller, size
    buffer = io.BytesIO()
    if max(width, height) < TINY_SIDE:
        shown.save(buffer, format="PNG")
        return EmbeddedImage(data_uri(buffer.getvalue(), "image/png"), width, height)
    shown.save(buffer, format="JPEG", quality=80)
    return EmbeddedImage(data_uri(buffer.getvalue(), "image/jpeg"), width, height)


def data_uri(content: bytes, media_type: str) -> str:
    """`data:MEDIA;base64,…` of a file's bytes."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"
