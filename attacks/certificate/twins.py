"""Images that a model may not tell from a result: mirrored, turned, shifted, recoloured, with patches exchanged."""

from collections.abc import Iterator
from itertools import combinations, permutations, product

from jaxtyping import Float
from torch import Tensor

from fedsim.observation import Observation

MAX_PATCHES = 16
"""Of an image, of which each two are exchanged: 120 pairs, each as long as a step of training."""

MAX_CHANNELS = 3
"""Of an image, of which every other order is tried: five, each as long as a step of training."""

MAX_OUTSIDE = 0.01
"""Of [0, 1], how far a pixel of an image of other colours may be: one farther outside is no client's."""


def twins(
    observation: Observation, images: Float[Tensor, "batch c h w"]
) -> Iterator[tuple[str, Float[Tensor, " pixels"]]]:
    """How each differs, and its numbers in the model's units; of several images all are changed, or patches of one."""
    yield from _moved(images)
    for how, twin in _recoloured(images):  # which in the model's units may be no image
        pixels = observation.to_unit_range(twin)
        if bool(((pixels >= -MAX_OUTSIDE) & (pixels <= 1.0 + MAX_OUTSIDE)).all()):
            yield how, twin.flatten()
    yield from _exchanged(images)


def _moved(images: Float[Tensor, "batch c h w"]) -> Iterator[tuple[str, Float[Tensor, " pixels"]]]:
    for axis, words in ((3, "mirrored"), (2, "upside down")):
        yield words, images.flip(axis).flatten()
    square = images.shape[2] == images.shape[3]
    for quarters in (1, 2, 3) if square else (2,):
        yield f"turned by {90 * quarters} degrees", images.rot90(quarters, (2, 3)).flatten()
    if square:
        yield "with its axes exchanged", images.transpose(2, 3).flatten()
        yield "with its axes exchanged, upside down and mirrored", images.transpose(2, 3).flip(2, 3).flatten()
    for axis in (2, 3):
        for pixels in range(1, images.shape[axis] // 2 + 1):  # of which one is a whole patch
            yield f"shifted by {pixels} pixels", images.roll(pixels, axis).flatten()


def _recoloured(images: Float[Tensor, "batch c h w"]) -> Iterator[tuple[str, Float[Tensor, "batch c h w"]]]:
    """The negative, and the channels in their other orders: five of three."""
    yield "in negative", -images
    channels = images.shape[1]
    if 1 < channels <= MAX_CHANNELS:
        for order in list(permutations(range(channels)))[1:]:
            yield f"with its channels in the order {', '.join(map(str, order))}", images[:, list(order)]


def _exchanged(images: Float[Tensor, "batch c h w"]) -> Iterator[tuple[str, Float[Tensor, " pixels"]]]:
    """Two square patches of each size in each other's place, where the image has at most `MAX_PATCHES` of them."""
    count, channels, height, width = images.shape
    for side in range(2, max(height, width)):
        down, across = height // side, width // side
        if height % side or width % side or down * across > MAX_PATCHES:
            continue
        patches = images.reshape(count, channels, down, side, across, side)
        for image, (one, other) in product(range(count), combinations(range(down * across), 2)):
            twin = patches.clone()
            twin[image, :, one // across, :, one % across] = patches[image, :, other // across, :, other % across]
            twin[image, :, other // across, :, other % across] = patches[image, :, one // across, :, one % across]
            yield f"with patches {one} and {other} exchanged", twin.flatten()
