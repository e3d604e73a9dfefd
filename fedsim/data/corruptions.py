"""The fifteen common corruptions of ImageNet-C and CIFAR-10-C (Hendrycks & Dietterich 2019), with its numbers.

Written anew on NumPy, SciPy and Pillow, so that one generator decides every draw. Two things differ from the
published pictures: motion blur follows ImageMagick's rule without ImageMagick, and frost is grown here unless the
authors' photographs of it are given.
"""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import PIL.Image
from jaxtyping import Float
from scipy import ndimage

from fedsim.data.corruption_levels import SEVERITIES, TABLES, Levels
from fedsim.data.pictures import UNREADABLE
from fedsim.errors import ConfigError

Pixels = Float[np.ndarray, "height width 3"]
Photograph = Float[np.ndarray, "_ _ 3"]
"""Of any size."""

CIFAR_FROST_SCALE = 0.2


def corrupt(
    picture: Pixels,
    name: str,
    severity: int,
    rng: np.random.Generator,
    table: str = "imagenet",
    frost: Sequence[Photograph] = (),
) -> Pixels:
    """A corrupted copy of a picture in [0, 1], rounded to 256 levels as a file would hold it.

    Args:
        severity: 1 to 5.
        table: whose numbers: `imagenet` (for 224 pixels) or `cifar` (for 32).
        frost: photographs of frost to crop from; none: frost is grown.

    Raises:
        ValueError: an unknown corruption, severity or table.
    """
    if table not in TABLES or name not in CORRUPTIONS or severity not in SEVERITIES:
        raise ValueError(f"{name} at severity {severity} with the numbers of {table}")
    levels = tuple(float(number) for number in TABLES[table][name][severity - 1])
    whole = picture.astype(np.float64)
    changed = _frost(whole, levels, rng, frost) if name == "frost" else CORRUPTIONS[name](whole, levels, rng)
    rounded: Pixels = np.rint(changed.clip(0.0, 1.0) * 255.0) / 255.0
    return rounded


def load_frost(folder: str | Path, table: str, side: int) -> list[Photograph]:
    """The photographs of frost in a folder, in the order of their names.

    For CIFAR's numbers they are made smaller, as published; never smaller than `side`, the pictures they are laid over.

    Raises:
        ConfigError: there are none, or one cannot be read.
    """
    result: list[Photograph] = []
    for path in sorted(Path(folder).expanduser().glob("*")):
        if path.suffix.lower() not in (".png", ".jpg", ".jpeg"):
            continue
        try:
            with PIL.Image.open(path) as opened:
                photograph = opened.convert("RGB")
        except UNREADABLE as error:
            raise ConfigError(
                "measure.corruptions.frost", path, fault=f"cannot be read as a picture: {error}"
            ) from error
        scale = max(CIFAR_FROST_SCALE if table == "cifar" else 1.0, side / min(photograph.size))
        if scale != 1.0:
            width, height = (max(side, round(scale * length)) for length in photograph.size)
            photograph = photograph.resize((width, height))
        result.append(np.asarray(photograph, dtype=np.float64) / 255.0)
    if not result:
        raise ConfigError("measure.corruptions.frost", folder, "a folder of PNG or JPEG photographs of frost")
    return result


def _gaussian_noise(x: Pixels, levels: Levels, rng: np.random.Generator) -> Pixels:
    return x + rng.normal(scale=levels[0], size=x.shape)


def _shot_noise(x: Pixels, levels: Levels, rng: np.random.Generator) -> Pixels:
    return rng.poisson(x * levels[0]) / levels[0]


def _impulse_noise(x: Pixels, levels: Levels, rng: np.random.Generator) -> Pixels:
    """Each colour value by itself turns black or white."""
    hit = rng.random(x.shape) < levels[0]
    return np.where(hit, rng.integers(0, 2, x.shape).astype(np.float64), x)


def _defocus_blur(x: Pixels, levels: Levels, rng: np.random.Generator) -> Pixels:
    blurred: Pixels = ndimage.correlate(x, disc(*levels)[..., None], mode="mirror")
    return blurred


def disc(radius: float, softness: float) -> Float[np.ndarray, "side side"]:
    """A uniform disc, softened by a Gaussian of 3x3 taps (5x5 above a radius of 8), whose sum is one."""
    taps, reach = (1, 8) if radius <= 8 else (2, int(radius))
    axis = np.arange(-reach, reach + 1)
    kernel = (axis[:, None] ** 2 + axis**2 <= radius**2).astype(np.float64)
    soft: np.ndarray = np.exp(-0.5 * (np.arange(-taps, taps + 1) / softness) ** 2)
    for axis_number in (0, 1):
        kernel = ndimage.correlate1d(kernel, soft / soft.sum(), axis=axis_number, mode="mirror")
    margin = max(0, reach - math.ceil(radius) - taps)
    kernel = kernel[margin : len(kernel) - margin, margin : len(kernel) - margin]
    kernel /= kernel.sum()
    return kernel


def _glass_blur(x: Pixels, levels: Levels, rng: np.random.Generator) -> Pixels:
    """Blur, move pixels about, blur. The published code means to exchange pixels but copies: so does this."""
    sigma, reach, rounds = levels[0], int(levels[1]), int(levels[2])
    height, width = x.shape[:2]
    source = list(range(height * width))
    places = [
        row * width + column for row in range(height - reach, reach, -1) for column in range(width - reach, reach, -1)
    ]
    for _ in range(rounds):
        steps = rng.integers(-reach, reach, (len(places), 2)) @ np.array([width, 1])
        for place, step in zip(places, steps.tolist(), strict=True):
            source[place] = source[place + step]
    moved = _blur(x, sigma).reshape(-1, 3)[source].reshape(x.shape)
    return _blur(moved, sigma)


def _blur(x: Pixels, sigma: float) -> Pixels:
    blurred: Pixels = ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="nearest")
    return blurred


def _motion_blur(x: Pixels, levels: Levels, rng: np.random.Generator) -> Pixels:
    return smear(x, int(levels[0]), levels[1], math.radians(rng.uniform(-45.0, 45.0)))


def smear(
    x: Float[np.ndarray, "height width channels"], radius: int, sigma: float, angle: float
) -> Float[np.ndarray, "height width channels"]:
    """ImageMagick's motion blur: half a Gaussian of 2·radius + 1 taps along one direction (radians), edges repeated."""
    height, width = x.shape[:2]
    taps = np.arange(2 * radius + 1)
    weights = np.exp(-0.5 * (taps / sigma) ** 2)
    rows, columns = (np.ceil(taps * part - 0.5).astype(int) for part in (math.sin(angle), math.cos(angle)))
    out = np.zeros(x.shape)
    for weight, down, right in zip(weights / weights.sum(), rows, columns, strict=True):
        down_to = (np.arange(height) + down).clip(0, height - 1)
        right_to = (np.arange(width) + right).clip(0, width - 1)
        out += weight * x[down_to[:, None], right_to]
    return out


def _zoom_blur(x: Pixels, levels: Levels, rng: np.random.Generator) -> Pixels:
    factors = np.arange(1.0, *levels)
    blurred: Pixels = (x + sum(zoom_in(x, factor) for factor in factors)) / (len(factors) + 1)
    return blurred


def zoom_in(x: Float[np.ndarray, "height width channels"], factor: float) -> Float[np.ndarray, "height width channels"]:
    """The centre, enlarged bilinearly to the size of the whole."""
    height, width = x.shape[:2]
    inner = x[_centre(height, math.ceil(height / factor)), _centre(width, math.ceil(width / factor))]
    large = ndimage.zoom(inner, (factor, factor, 1), order=1)
    middle: Float[np.ndarray, "height width channels"] = large[
        _centre(large.shape[0], height), _centre(large.shape[1], width)
    ]
    return middle


def _centre(length: int, part: int) -> slice:
    start = (length - part) // 2
    return slice(start, start + part)


def _snow(x: Pixels, levels: Levels, rng: np.random.Generator) -> Pixels:
    mean, std, factor, least, radius, sigma, share = levels
    flakes = zoom_in(rng.normal(mean, std, (*x.shape[:2], 1)), factor)
    flakes = np.where(flakes < least, 0.0, flakes).clip(0.0, 1.0)
    flakes = smear(flakes, int(radius), sigma, math.radians(rng.uniform(-135.0, -45.0)))
    grey = x @ np.array([[0.299], [0.587], [0.114]])
    snowy: Pixels = share * x + (1.0 - share) * np.maximum(x, 1.5 * grey + 0.5) + flakes + np.rot90(flakes, 2)
    return snowy


def _frost(x: Pixels, levels: Levels, rng: np.random.Generator, photographs: Sequence[Photograph]) -> Pixels:
    height, width = x.shape[:2]
    if photographs:
        ice = photographs[int(rng.integers(len(photographs)))]
        top, left = rng.integers(ice.shape[0] - height + 1), rng.integers(ice.shape[1] - width + 1)
        ice = ice[top : top + height, left : left + width]
    else:
        ridges = 1.0 - np.abs(2.0 * plasma(max(height, width), 1.6, rng)[:height, :width] - 1.0)
        ice = (0.3 + 0.6 * ridges[..., None]) * np.array([0.85, 0.95, 1.0])
    frosted: Pixels = levels[0] * x + levels[1] * ice
    return frosted


def _fog(x: Pixels, levels: Levels, rng: np.random.Generator) -> Pixels:
    height, width = x.shape[:2]
    brightest = x.max()
    thick = levels[0] * plasma(max(height, width), levels[1], rng)[:height, :width, None]
    foggy: Pixels = (x + thick) * brightest / (brightest + levels[0])
    return foggy


def plasma(side: int, decay: float, rng: np.random.Generator) -> Float[np.ndarray, "size size"]:
    """A fractal cloud in [0, 1] by the diamond-square algorithm on a torus; its side is the next power of two.

    Args:
        decay: the displacement's scale is divided by it at each halving, its size by the square: larger is smoother.
    """
    size = 2 ** max(1, math.ceil(math.log2(side)))
    field = np.zeros((size, size))
    step, scale = size, 100.0
    while step >= 2:
        half = step // 2
        corner = field[::step, ::step]
        right, below = np.roll(corner, -1, 1), np.roll(corner, -1, 0)
        middle = _midpoints(rng, scale, corner, right, below, np.roll(right, -1, 0))
        field[half::step, half::step] = middle
        field[::step, half::step] = _midpoints(rng, scale, corner, right, middle, np.roll(middle, 1, 0))
        field[half::step, ::step] = _midpoints(rng, scale, corner, below, middle, np.roll(middle, 1, 1))
        step, scale = half, scale / decay
    field -= field.min()
    field /= field.max()
    return field


def _midpoints(
    rng: np.random.Generator, scale: float, *neighbours: Float[np.ndarray, "rows columns"]
) -> Float[np.ndarray, "rows columns"]:
    """The mean of four neighbours, displaced."""
    middle: Float[np.ndarray, "rows columns"] = np.mean(neighbours, axis=0)
    return middle + scale**2 * rng.uniform(-1.0, 1.0, middle.shape)


def _brightness(x: Pixels, levels: Levels, rng: np.random.Generator) -> Pixels:
    """The value of HSV raised: hue and saturation stay, so each colour is scaled. Black turns grey."""
    value = x.max(axis=2, keepdims=True)
    raised = np.minimum(value + levels[0], 1.0)
    bright: Pixels = np.where(value > 0, x * raised / np.maximum(value, np.finfo(np.float64).tiny), raised)
    return bright


def _contrast(x: Pixels, levels: Levels, rng: np.random.Generator) -> Pixels:
    mean = x.mean(axis=(0, 1), keepdims=True)
    flat: Pixels = mean + levels[0] * (x - mean)
    return flat


def _elastic_transform(x: Pixels, levels: Levels, rng: np.random.Generator) -> Pixels:
    """A random affine map of three points about the centre, then a smooth random displacement."""
    strength, sigma, shift = levels
    height, width = x.shape[:2]
    middle, reach = np.array([height // 2, width // 2]), min(height, width) // 3
    corners = middle + reach * np.array([[1, 1], [-1, 1], [-1, -1]])
    moved = corners + rng.uniform(-shift, shift, corners.shape)
    # Where each output pixel comes from: the affine map from the moved corners back to the original ones.
    back = np.linalg.solve(np.column_stack([moved, np.ones(3)]), corners)
    grid = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"), axis=-1).astype(np.float64)
    warped = _sample(x, grid @ back[:2] + back[2], "mirror")
    fields = [
        ndimage.gaussian_filter(rng.uniform(-1.0, 1.0, (height, width)), sigma, mode="reflect", truncate=3)
        for _ in range(2)
    ]
    return _sample(warped, grid + strength * np.stack(fields, axis=-1), "reflect")


def _sample(x: Pixels, places: Float[np.ndarray, "height width 2"], mode: str) -> Pixels:
    """Bilinear values at (row, column)."""
    coordinates = np.moveaxis(places, -1, 0)
    return np.stack(
        [ndimage.map_coordinates(x[..., c], coordinates, order=1, mode=mode) for c in range(x.shape[2])], axis=-1
    )


def _pixelate(x: Pixels, levels: Levels, rng: np.random.Generator) -> Pixels:
    height, width = x.shape[:2]
    small = (int(width * levels[0]), int(height * levels[0]))
    image = _as_file(x).resize(small, PIL.Image.Resampling.BOX).resize((width, height), PIL.Image.Resampling.BOX)
    return np.asarray(image, dtype=np.float64) / 255.0


def _jpeg_compression(x: Pixels, levels: Levels, rng: np.random.Generator) -> Pixels:
    content = io.BytesIO()
    _as_file(x).save(content, "JPEG", quality=int(levels[0]))
    with PIL.Image.open(content) as image:
        return np.asarray(image, dtype=np.float64) / 255.0


def _as_file(x: Pixels) -> PIL.Image.Image:
    return PIL.Image.fromarray(np.rint(x * 255.0).astype(np.uint8))


CORRUPTIONS: Mapping[str, Callable[..., Pixels]] = {
    "gaussian_noise": _gaussian_noise,
    "shot_noise": _shot_noise,
    "impulse_noise": _impulse_noise,
    "defocus_blur": _defocus_blur,
    "glass_blur": _glass_blur,
    "motion_blur": _motion_blur,
    "zoom_blur": _zoom_blur,
    "snow": _snow,
    "frost": _frost,
    "fog": _fog,
    "brightness": _brightness,
    "contrast": _contrast,
    "elastic_transform": _elastic_transform,
    "pixelate": _pixelate,
    "jpeg_compression": _jpeg_compression,
}
"""By their published names, in the published order."""

NAMES = tuple(CORRUPTIONS)
