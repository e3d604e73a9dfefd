"""From a nearly exact row-space solution to whole pixel levels, and the test that these are the right ones."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.analytic.row_space.later_norms import Readers
from attacks.analytic.row_space.subspace import Subspace
from attacks.analytic.row_space.system import PatchSystem

MAX_EXCESS = 4.0
"""How many times the expected noise the equations of whole-level patches may miss by; 1.1 to 2.3 at the truth."""

MIN_POWER = 6.0
"""How many times the noise of all equations one wrong pixel must move them, to count as showing that there is none."""

ROUNDING = 2e-7
"""Relative: normalising a whole level in float32 does not end on a whole level."""


@dataclass(frozen=True)
class WholeLevels:
    """Patches rounded to whole pixel levels, and whether the equations bear it.

    Attributes:
        patches: every entry what a whole number of levels is normalised to.
        excess: largest, over row spaces and patches, root mean square of what must vanish over what noise explains.
        typical_excess: of the median patch.
        power: what one pixel off by one level would move, over the noise, for the least visible pixel.
    """

    patches: Float[Tensor, "tokens pixels"]
    excess: float
    typical_excess: float
    power: float


def to_whole_levels(
    system: PatchSystem,
    coordinates: Float[Tensor, "tokens unknowns"],
    deviation: Float[Tensor, " unknowns"],
    image: Subspace,
    readers: Readers,
    step: Float[Tensor, " pixels"],
    offset: Float[Tensor, " pixels"],
    levels: int,
    rounds: int = 15,
) -> WholeLevels:
    """Round, move back to what the equations know, and round again (projections onto the grid and the solutions).

    Args:
        image: the row space of ∂L/∂W_p.
        readers: projections whose row spaces test the result.
        deviation: of each coordinate; badly known ones follow the rounded picture.
        step, offset: a pixel's value is step·level + offset.
    """
    spread = float(step.mean()) / math.sqrt(12.0)
    follow = torch.where(deviation.isinf(), 1.0, deviation.square() / (deviation.square() + spread**2))
    whole = _nearest(system.patches(coordinates), step, offset, levels)
    for _ in range(rounds):
        current = coordinates + follow * (system.coordinates(whole) - coordinates)
        moved = _nearest(system.patches(current), step, offset, levels)
        if torch.equal(moved, whole):
            break
        whole = moved
    return WholeLevels(whole, *_test(whole, image, readers, step))


def _nearest(patches: Tensor, step: Tensor, offset: Tensor, levels: int) -> Tensor:
    return ((patches - offset) / step).round().clamp(0, levels) * step + offset


def _test(
    patches: Float[Tensor, "tokens pixels"],
    image: Subspace,
    readers: Readers,
    step: Float[Tensor, " pixels"],
) -> tuple[float, float, float]:
    """Largest and typical excess over the tokens and all tests, and the power of the best test for each pixel."""
    excesses, powers = [], []
    spare = patches.shape[1] - len(image.basis)
    if spare > 0:
        rounding = ROUNDING * float(patches.abs().max())
        outside = patches - (patches @ image.basis.T) @ image.basis
        noise = (image.leak(patches).square() + rounding**2).sqrt() * math.sqrt(spare)
        excesses.append(outside.norm(dim=1) / noise)
        seen = (1.0 - image.basis.square().sum(dim=0)).clamp(min=0.0).sqrt()
        powers.append((step * seen)[None] / noise[:, None])
    projection = readers.norm.patch_weight - readers.norm.patch_weight.mean(dim=0, keepdim=True)
    sizes = (patches @ readers.norm.patch_weight.T + readers.norm.known).std(dim=1, unbiased=False)
    for u, space in zip(readers.inputs(patches), readers.spaces, strict=True):
        rows = u[len(u) - len(patches) :]
        noise = (space.leak(rows).square() + ROUNDING**2).sqrt() * math.sqrt(len(space.null))
        excesses.append((rows @ space.null.T).norm(dim=1) / noise)
        moved = (space.null @ (readers.norm.scale[:, None] * projection)).norm(dim=0) * step
        powers.append(moved[None] / (sizes * noise)[:, None])
    worst = torch.stack(excesses)
    return float(worst.max()), float(worst.median(dim=1).values.max()), float(torch.stack(powers).amax(dim=0).min())
