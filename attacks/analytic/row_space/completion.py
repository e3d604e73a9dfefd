"""The smoothest picture within what equations leave open: total variation by iteratively reweighted least squares."""

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.analytic.linear.conjugate_gradients import conjugate_gradients
from attacks.analytic.linear.patches import patchify, unpatchify

Edges = tuple[Tensor, Tensor]

POWER = 0.7
"""Exponent of the pixel differences: sharper edges than total variation's 1."""

SCALE = 0.03
"""Differences below this share of the pixel range count as smooth."""


def complete(
    patches: Float[Tensor, "tokens pixels"],
    free: Float[Tensor, "directions pixels"],
    deviation: Float[Tensor, " directions"],
    pixel_std: Float[Tensor, " pixels"],
    grid: tuple[int, int],
    patch: tuple[int, int],
    torn: Float[Tensor, " tokens"] | None = None,
    rounds: int = 10,
    iterations: int = 60,
) -> Float[Tensor, "tokens pixels"]:
    """Move every patch within the directions `free` to where the whole picture is smoothest.

    Minimises ½ Σ (c/deviation)² + Σ |difference of neighbouring pixels|^POWER / SCALE, differences over all channels
    together, within patches and across their seams.

    Args:
        free: orthonormal rows.
        deviation: standard deviation with which each coordinate is known to be that of `patches`; inf: not at all.
        pixel_std: turns entries of `patches` into a [0, 1] pixel's, up to an offset.
        torn: 1 for patches whose seams carry no information (shuffled ones), else 0.
    """
    base, directions = patches * pixel_std, free * pixel_std
    prior = torch.where(deviation.isinf(), 0.0, deviation.clamp(min=1e-12).reciprocal().square())
    kept = None if torn is None else _seams(torn, grid, patch)
    coordinates = torch.zeros(len(patches), len(free), dtype=patches.dtype, device=patches.device)
    for number in range(rounds):
        edges = _differences(unpatchify(base + coordinates @ directions, grid, patch))
        weights = _weights(edges, kept, first=number == 0)

        def curvature(v: Tensor, weights: Edges = weights) -> Tensor:
            c = v.view(len(patches), len(free))
            horizontal, vertical = _differences(unpatchify(c @ directions, grid, patch))
            pulled = _gather((weights[0] * horizontal, weights[1] * vertical), grid, patch)
            return (pulled @ directions.T + prior * c).flatten()

        slope = _gather((weights[0] * edges[0], weights[1] * edges[1]), grid, patch) @ directions.T
        right_hand = -slope - prior * coordinates
        scale = prior + 4.0 * float(weights[0].mean()) * directions.square().sum(dim=1)
        diagonal = scale.expand_as(right_hand).flatten()
        step, _, _ = conjugate_gradients(curvature, right_hand.flatten(), diagonal.reciprocal().mul, 1e-6, iterations)
        coordinates = coordinates + step.view_as(right_hand)
    return patches + coordinates @ free


def _differences(image: Float[Tensor, "1 c h w"]) -> Edges:
    return image[..., 1:] - image[..., :-1], image[..., 1:, :] - image[..., :-1, :]


def _gather(edges: Edges, grid: tuple[int, int], patch: tuple[int, int]) -> Float[Tensor, "tokens pixels"]:
    """The adjoint of `_differences`, as patches."""
    horizontal, vertical = edges
    image = torch.zeros(
        1,
        horizontal.shape[1],
        grid[0] * patch[0],
        grid[1] * patch[1],
        dtype=horizontal.dtype,
        device=horizontal.device,
    )
    image[..., 1:] += horizontal
    image[..., :-1] -= horizontal
    image[..., 1:, :] += vertical
    image[..., :-1, :] -= vertical
    return patchify(image, patch)


def _weights(edges: Edges, kept: Edges | None, first: bool) -> Edges:
    """Reweighting of each difference; the first round is the quadratic one."""
    found = []
    for index, difference in enumerate(edges):
        size = difference.square().mean(dim=1, keepdim=True) + SCALE**2
        weight = torch.full_like(size, SCALE**-2) if first else (size / SCALE**2).pow(POWER / 2 - 1) / SCALE**2
        found.append(weight if kept is None else weight * kept[index])
    return found[0], found[1]


def _seams(torn: Float[Tensor, " tokens"], grid: tuple[int, int], patch: tuple[int, int]) -> Edges:
    """0 for differences across the border of a torn patch, 1 elsewhere."""
    whole = torn.reshape(1, 1, *grid).repeat_interleave(patch[0], 2).repeat_interleave(patch[1], 3)
    number = torch.arange(grid[0] * grid[1], device=torn.device).reshape(1, 1, *grid)
    number = number.repeat_interleave(patch[0], 2).repeat_interleave(patch[1], 3)
    horizontal = (number[..., 1:] != number[..., :-1]) & ((whole[..., 1:] + whole[..., :-1]) > 0)
    vertical = (number[..., 1:, :] != number[..., :-1, :]) & ((whole[..., 1:, :] + whole[..., :-1, :]) > 0)
    return (~horizontal).to(torn.dtype), (~vertical).to(torn.dtype)
