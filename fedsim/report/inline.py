"""Images inside a page of a notebook."""

import io

from PIL import Image
from torch import Tensor

from fedsim.report.draw.pictures import as_levels, data_uri

MOST = 8
"""Images in a row."""

SIDE = 128
"""Pixels; smaller images are enlarged without smoothing, much larger ones shown smaller."""


def inline_images(images: Tensor | None) -> str:
    """`<img>` tags with the images inside; empty without any."""
    if images is None or images.shape[1] not in (1, 3):
        return ""
    return "".join(f'<img alt="rebuilt image {n}" src="{_uri(one)}">' for n, one in enumerate(images[:MOST]))


def _uri(image: Tensor) -> str:
    picture = Image.fromarray(as_levels(image))
    enlarge = max(1, SIDE // max(picture.size))
    picture = picture.resize((picture.width * enlarge, picture.height * enlarge), Image.Resampling.NEAREST)
    picture.thumbnail((2 * SIDE, 2 * SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return data_uri(buffer.getvalue(), "image/png")
