"""How far the solution of a closed form's own system may be off, with errors on both of its sides."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.result import PsnrBound, psnr_of

MARGIN = 3.0
"""Times the root mean square that the measured errors lead to: they were measured once, at the result."""

FEW = 10.0
"""Degrees of freedom by which an error is measured badly: alike columns count once."""


@dataclass(frozen=True)
class LinearSystem:
    """Gᵀ X = A, from one update."""

    matrix: Float[Tensor, "unknowns equations"]
    right_hand: Float[Tensor, "equations columns"]


def linear_error(
    shared: LinearSystem, again: LinearSystem, solution: Float[Tensor, "unknowns columns"], eps: float
) -> Float[Tensor, " unknowns"] | None:
    """A bound on the root mean square error of each row of X̂ in Gᵀ X = A; None without full rank.

    A = Gᵀ X + ρ for what the client really had, ρ its arithmetic and whatever its defenses do to G and A apart. Then
    X̂ - X = M (Gᵀ X̂ - A + ρ) for any left inverse M of Gᵀ. The residual of X̂ is known. ρ is measured twice: at X̂
    itself, whose own G and A come from the client's computation once more, equation by equation; and by what no X
    explains in the equations to spare. The larger of both counts, `MARGIN` times.

    Neither sees a factor on all of A, or of G: A = c Gᵀ X is solved by c X, with nothing left over. What the shared G
    and A are off those of the result moves X by that share of itself, and counts in full for each of them.

    Args:
        shared: G and A as they were shared.
        again: those that the result gives.
        solution: X̂.
        eps: relative rounding of the client's numbers.
    """
    G, A = shared.matrix.double(), shared.right_hand.double()
    unknowns, equations = G.shape
    if unknowns > equations:
        return None
    X, columns = solution.double(), int(torch.unique(solution, dim=1).shape[1])
    arithmetic = (again.right_hand.double() - again.matrix.double().T @ X).square().mean(dim=1)
    size = (G.abs().T @ X.abs()).square().mean(dim=1).clamp(min=1e-300)
    # An equation that came out right by chance has no less noise than the others, in proportion to its terms.
    typical = float((arithmetic / size).mean()) + eps**2
    scale = torch.maximum(arithmetic, typical * size).sqrt()
    scale = scale.clamp(min=1e-6 * float(scale.max())).clamp(min=1e-300)
    weighed, left_over = G / scale, (G.T @ X - A) / scale[:, None]
    rows = weighed.norm(dim=1).clamp(min=1e-300)
    left, singular, right = torch.linalg.svd((weighed / rows[:, None]).T, full_matrices=False)
    if float(singular[-1]) <= float(singular[0]) * torch.finfo(torch.float64).eps * equations:
        return None
    inverse = (right.T / singular) @ left.T / rows[:, None]
    unexplained = left_over - left @ (left.T @ left_over)
    spare = equations - unknowns
    noise = max(1.0, float(unexplained.norm()) / math.sqrt(spare * X.shape[1])) if spare else 1.0
    noise *= 1.0 + FEW / max(1, spare * columns)
    known = (inverse @ left_over).square().mean(dim=1).sqrt()
    off = _share(G - again.matrix.double(), G, dim=1) + _share(A - again.right_hand.double(), A)
    errors: Tensor = known + MARGIN * noise * inverse.norm(dim=1) + off * X.square().mean(dim=1).sqrt()
    return errors


def _share(
    difference: Float[Tensor, "rows columns"], whole: Float[Tensor, "rows columns"], dim: int | None = None
) -> Float[Tensor, "*rows"]:
    share: Tensor = difference.norm(dim=dim) / whole.norm(dim=dim).clamp(min=1e-300)
    return share


def own_equations(errors: Float[Tensor, " unknowns"] | None, std: Sequence[float]) -> PsnrBound | None:
    """The bound in dB of [0, 1] pixels, for the errors of rows of normalised ones; `std` by which they were divided."""
    if errors is None:
        return None
    mse = float(errors.square().mean()) * max(std) ** 2
    return PsnrBound(psnr_of(mse), "its own equations, with the errors measured on both sides")
