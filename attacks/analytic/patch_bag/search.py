"""All tokens of a bag: many starts at once, deflation of what was found, until as many are found as there are."""

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.analytic.first_block.levenberg_marquardt import Squares, deflated, minimise
from attacks.analytic.patch_bag.tokens import TokenSystem

TOGETHER = 64
"""Starts that are searched at once."""

NEAREST, APART = 1e-6, 10.0
"""Solutions are one where they are closer than this share of the typical ‖x‖, or than so many times their errors."""


def find_tokens(
    system: TokenSystem, tolerance: float, starts: int, steps: int, rng: torch.Generator
) -> tuple[Float[Tensor, "found free"], list[dict[str, float]]]:
    """Up to `system.count` solutions, the best residuals first, and the way there.

    Args:
        tolerance: the largest relative residual of a solution.
    """
    base = system.tokens.tokens.base
    found = base.new_zeros(0, system.free)
    trace: list[dict[str, float]] = []
    spread = 1.0
    for begun in range(0, starts if system.free else 1, TOGETHER):
        drawn = torch.randn(min(TOGETHER, starts - begun), system.free, generator=rng, dtype=base.dtype).to(base.device)
        x = drawn * (spread / max(1, system.free) ** 0.5)
        known, radius = found[None].expand(len(x), -1, -1), 0.6 * spread

        def away(x: Tensor, known: Tensor = known, radius: float = radius) -> Squares:
            return deflated(system.normal(x), x, known, radius)

        # In turn: deflation keeps starts from what is known, and some of them from what lies beyond it.
        x, way = minimise(system.normal if begun // TOGETHER % 2 else away, x, steps)
        x, _ = minimise(system.normal, x, 5)  # the deflated cost stops short of rounding level
        trace += [{"step": float(len(trace)), "residual": row.cost, "damping": row.damping} for row in way]
        before, found = len(found), _merged(system, found, x, tolerance, NEAREST * spread)
        # Tokens of one patch differ by the attention alone, and may be too near each other to be told apart.
        if len(found) == system.count or (len(found) >= system.distinct and len(found) == before):
            break
        if len(found):
            spread = max(float(found.norm(dim=1).median()), 1e-6)
    return found, trace


def _merged(
    system: TokenSystem,
    found: Float[Tensor, "found free"],
    x: Float[Tensor, "points free"],
    tolerance: float,
    least: float,
) -> Float[Tensor, "more free"]:
    """An error is what the residual makes of the weakest direction of the Jacobian."""
    x = torch.cat([found, x])
    residual = system.residual(x)[0].norm(dim=1)
    relative = system.relative(x)
    weakest = torch.linalg.svdvals(system.jacobian(x))[:, -1] if system.free else residual.new_ones(len(x))
    error = APART * residual / weakest.clamp(min=torch.finfo(x.dtype).tiny) + least
    kept: list[int] = []
    for index in relative.argsort().tolist():
        if not float(relative[index]) < tolerance or len(kept) == system.count:
            break
        if all(float((x[index] - x[other]).norm()) > float(error[index] + error[other]) for other in kept):
            kept.append(index)
    return x[kept]
