"""From the row spaces to pixels: smoothness, later projections, whole levels, each where those before fall short."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.analytic.linear.patches import PatchPixels
from attacks.analytic.row_space.completion import complete
from attacks.analytic.row_space.first_norm import FirstNorm
from attacks.analytic.row_space.later_norms import Readers, Refined, refine
from attacks.analytic.row_space.subspace import Subspace
from attacks.analytic.row_space.system import PatchSystem, Uncertainty, uncertainty
from attacks.analytic.row_space.whole_levels import MAX_EXCESS, MIN_POWER, WholeLevels, to_whole_levels
from attacks.result import psnr_of

GRADUAL = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5)
"""Floors under the noise where the linear system leaves directions open: the start is far, its curvature matters."""

OPEN = 0.3
"""Deviation of a coordinate of a normalised patch above which its estimate is worth less than smoothness."""

KNOWN = 0.02
"""Deviation below which nothing is to be gained: a tenth of a level in each pixel of a 16 px patch."""


@dataclass(frozen=True)
class RowSpaceSolution:
    """The patches of one image, and what is known of their error.

    Attributes:
        patches: normalised, float64.
        doubt: of the linear system alone.
        refined: by later projections, or None.
        whole: `patches` as whole levels with their test, or None where they are not.
    """

    patches: Float[Tensor, "tokens pixels"]
    doubt: Uncertainty
    refined: Refined | None
    whole: WholeLevels | None

    @property
    def levels_hold(self) -> bool:
        """Whole levels in which one wrong pixel would be seen."""
        return self.whole is not None and self.whole.excess <= MAX_EXCESS and self.whole.power >= MIN_POWER


def solve(
    system: PatchSystem,
    norm: FirstNorm,
    image: Subspace,
    tokens: Subspace,
    pixels: PatchPixels,
    make_readers: Callable[[bool], Readers | None],
    levels: int | None,
    torn: Float[Tensor, " tokens"] | None = None,
) -> RowSpaceSolution:
    """The patches of one image.

    Args:
        image, tokens: row spaces of ∂L/∂W_p and ∂L/∂W_qkv.
        make_readers: later projections, called where they are needed: with True where equations are short.
        torn: 1 for patches whose neighbours say nothing about them.
    """
    doubt = uncertainty(system, norm, tokens)
    coordinates = smoothest(system, doubt, pixels, torn)
    short = open_directions(doubt) > 0
    refined = None
    result = RowSpaceSolution(system.patches(coordinates), doubt, None, None)
    first = Readers(norm, [tokens])
    whole = _round(system, coordinates, doubt.deviation, image, first, pixels, levels)
    if whole is not None:
        result = RowSpaceSolution(whole.patches, doubt, None, whole)
    readers = make_readers(short) if short or not result.levels_hold else None
    if readers is not None:
        refined = refine(
            readers,
            system.base,
            system.directions @ system.span,
            coordinates,
            floors=GRADUAL if short else (1e-5, 1e-5),
            iterations=30 if short else 20,
        )
        result = RowSpaceSolution(system.patches(refined.coordinates), doubt, refined, None)
        deviation = doubt.deviation.clamp(max=KNOWN)
        whole = _round(system, refined.coordinates, deviation, image, readers, pixels, levels)
        if whole is not None:
            result = RowSpaceSolution(whole.patches, doubt, refined, whole)
    return result


def smoothest(
    system: PatchSystem, doubt: Uncertainty, pixels: PatchPixels, torn: Float[Tensor, " tokens"] | None = None
) -> Float[Tensor, "tokens unknowns"]:
    """Coordinates of the patches, those that the equations leave open by smoothness."""
    open_ = doubt.deviation > KNOWN
    if not bool(open_.any()):
        return system.estimate
    lost = doubt.deviation > OPEN
    start = system.patches(torch.where(lost, 0.0, system.estimate))
    deviation = torch.where(lost, torch.inf, doubt.deviation)[open_]
    free = (system.directions @ system.span)[open_]
    return system.coordinates(complete(start, free, deviation, pixels.std, pixels.grid, pixels.patch, torn))


def open_directions(doubt: Uncertainty) -> int:
    """How many directions of a patch the linear system leaves open, or nearly so."""
    return int((doubt.deviation > KNOWN).sum())


def expected_psnr(system: PatchSystem, doubt: Uncertainty, pixels: PatchPixels) -> float:
    """dB of the linear solution, from the noise of its equations and its singular values."""
    rounding = torch.finfo(torch.float64).eps * float(system.singular[0])
    growth = float(system.singular.clamp(min=rounding).reciprocal().square().mean()) * len(system.singular)
    mse = float(doubt.noise.square().mean()) * growth / len(pixels.std) * float(pixels.std.square().mean())
    return psnr_of(mse)


def _round(
    system: PatchSystem,
    coordinates: Float[Tensor, "tokens unknowns"],
    deviation: Float[Tensor, " unknowns"],
    image: Subspace,
    readers: Readers,
    pixels: PatchPixels,
    levels: int | None,
) -> WholeLevels | None:
    """Whole pixel levels where they satisfy the equations of most patches, else None."""
    if levels is None:
        return None
    step, offset = 1.0 / (levels * pixels.std), -pixels.mean / pixels.std
    whole = to_whole_levels(system, coordinates, deviation, image, readers, step, offset, levels)
    return whole if whole.typical_excess <= MAX_EXCESS else None
