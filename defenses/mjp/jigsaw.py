"""The puzzle: masked patches change places among themselves, as pixels, before the patch projection.

Index arithmetic is NumPy's, whose calls on a few numbers cost a tenth of torch's.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


def jigsaw_order(mask: Bool[Tensor, "*batch tokens"], rng: torch.Generator) -> Int64[Tensor, "*batch tokens"]:
    """Which patch comes to each position: a uniform permutation on each mask, the identity off it."""
    tokens = mask.shape[-1]
    positions = np.flatnonzero(mask.numpy())
    # Sorted by picture, and at random within it: one sort permutes every mask.
    keys = positions // tokens + torch.rand(len(positions), generator=rng, dtype=torch.float64).numpy()
    order = np.arange(mask.numel()) % tokens
    order[positions] = positions[keys.argsort()] % tokens
    return torch.from_numpy(order).reshape(mask.shape)


def shuffle_patches(
    images: Float[Tensor, "b c h w"], order: Int64[Tensor, "b tokens"], patch: tuple[int, int]
) -> Float[Tensor, "b c h w"]:
    """Patch order[b, n] of picture b comes to position n."""
    columns, source = images.shape[3] // patch[1], order.numpy()
    image, position = np.nonzero(source != np.arange(source.shape[1]))
    places = [image, *np.divmod(position, columns), *np.divmod(source[image, position], columns)]
    index = torch.from_numpy(np.stack(places)).to(images.device).unbind()
    shuffled = images.clone(memory_format=torch.contiguous_format)
    tiles(shuffled, patch)[index[:3]] = tiles(images.contiguous(), patch)[index[0], index[3], index[4]]
    return shuffled


def pixel_order(count: int, patch: tuple[int, int], rng: torch.Generator) -> Int64[Tensor, "count pixels"]:
    """Uniform permutations of a patch's pixels."""
    order: Tensor = torch.rand(count, patch[0] * patch[1], generator=rng, dtype=torch.float64).argsort(dim=1)
    return order


def shuffle_pixels(
    images: Float[Tensor, "b c h w"],
    mask: Bool[Tensor, "b tokens"],
    order: Int64[Tensor, "b pixels"],
    patch: tuple[int, int],
) -> Float[Tensor, "b c h w"]:
    """Pixel order[b, i] of each masked patch of picture b comes to its pixel i, in all channels."""
    image, position = np.nonzero(mask.numpy())
    places = [image, *np.divmod(position, images.shape[3] // patch[1])]
    index = torch.from_numpy(np.stack(places)).to(images.device).unbind()
    shuffled = images.clone(memory_format=torch.contiguous_format)
    to = tiles(shuffled, patch)
    pixels = to[index].flatten(2)
    pixels = pixels.gather(2, order.to(images.device)[index[0], None].expand_as(pixels))
    to[index] = pixels.unflatten(2, patch)
    return shuffled


def tiles(images: Float[Tensor, "b c h w"], patch: tuple[int, int]) -> Float[Tensor, "b rows columns c p q"]:
    """The patches of pictures that they fill, as a view."""
    rows, columns = images.shape[2] // patch[0], images.shape[3] // patch[1]
    batch, channels = images.shape[:2]
    return images.view(batch, channels, rows, patch[0], columns, patch[1]).permute(0, 2, 4, 1, 3, 5)
