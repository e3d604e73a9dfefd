"""From nearly exact patches to exact ones: pixels are 8-bit numbers, and the equations can test it."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

EXCESS = 4.0
"""How many times the noise's energy the residual of a rounded solution may have. A picture that is not on the grid is
off by a quarter of a level on average, which exceeds rounding noise by orders of magnitude wherever rounding works."""

MAX_WRONG = 0.01
"""Expected number of wrong pixels in the whole picture up to which it counts as exact."""

NEAR_LEVEL = 0.25
"""All pixels must be this close to whole levels before `whole_levels` rounds them; half of random ones are."""


@dataclass(frozen=True)
class GridSolution:
    """Patches on the pixel grid.

    Attributes:
        patches: X, float64, every entry the image of a whole number of levels.
        excess: energy of the residual over what the noise alone would leave: about 1 for the true picture.
        expected_wrong: expected number of entries on a wrong level, were every earlier decision right.
    """

    patches: Float[Tensor, "tokens pixels"]
    excess: float
    expected_wrong: float


def round_to_grid(
    token_grads: Float[Tensor, "tokens width"],
    patch_weight_grad: Float[Tensor, "width pixels"],
    noise: Float[Tensor, " width"],
    noise_variance: float,
    step: Float[Tensor, " pixels"],
    offset: Float[Tensor, " pixels"],
    levels: int,
    precision: float = 0.0,
) -> GridSolution:
    """Solve Gᵀ X = A for X = step·k + offset with whole k in 0 … levels, token by token.

    Successive interference cancellation on a sorted QR decomposition (Babai's nearest plane; Wübben et al. 2001
    for the order): each token is rounded and taken out before the next is solved for, so that a well determined
    token helps a badly determined one. Rounding all at once would need errors below half a level everywhere.

    Args:
        noise: relative standard deviation of the noise in each equation.
        noise_variance: its variance in an equation of relative noise 1, per right-hand side.
        precision: relative rounding of what the model saw: normalising a whole level does not end on a float.
    """
    G, A = token_grads.double(), patch_weight_grad.double()
    basis = (G / noise).T
    target = (A / noise[:, None] - basis.sum(dim=1, keepdim=True) * offset) / step
    Q, R, order = _sorted_qr(basis)
    right = Q.T @ target
    diagonal = R.diagonal()
    chosen = torch.zeros(len(order), A.shape[1], dtype=G.dtype, device=G.device)
    for row in reversed(range(len(order))):
        rest = right[row] - R[row, row + 1 :] @ chosen[row + 1 :]
        chosen[row] = (rest / diagonal[row]).round().clamp(0, levels)
    whole = torch.zeros_like(chosen)
    whole[order] = chosen
    patches = whole * step + offset
    residual = ((A - G.T @ patches) / noise[:, None]).square().sum()
    # Subtracting the mean cancels digits: the rounding is that of the terms, not of their difference.
    terms = patches.abs() + 2.0 * offset.abs()
    seen = precision**2 * float((basis.square() @ terms.square()).sum())
    excess = float(residual) / max(noise_variance * A.numel() + seen, torch.finfo(torch.float64).tiny)
    deviation = math.sqrt(noise_variance) / (diagonal.abs()[:, None] * step[None, :])
    wrong = torch.special.erfc(0.5 / (deviation * math.sqrt(2.0)).clamp(min=1e-12)).sum()
    return GridSolution(patches, excess, float(wrong))


def _sorted_qr(
    basis: Float[Tensor, "width tokens"],
) -> tuple[Float[Tensor, "width tokens"], Float[Tensor, "tokens tokens"], Tensor]:
    """Q, R and the order of columns: the weakest remaining column comes next, so the strongest is decided first."""
    Q = basis.clone()
    tokens = Q.shape[1]
    R = torch.zeros(tokens, tokens, dtype=Q.dtype, device=Q.device)
    order = torch.arange(tokens, device=Q.device)
    for step in range(tokens):
        weakest = step + int(Q[:, step:].square().sum(dim=0).argmin())
        if weakest != step:
            swap = [weakest, step]
            Q[:, [step, weakest]] = Q[:, swap]
            R[:, [step, weakest]] = R[:, swap]
            order[[step, weakest]] = order[swap]
        R[step, step] = Q[:, step].norm()
        Q[:, step] = Q[:, step] / R[step, step].clamp(min=torch.finfo(Q.dtype).tiny)
        # Twice, because once loses orthogonality at condition numbers of 1e5.
        for _ in range(2):
            overlap = Q[:, step] @ Q[:, step + 1 :]
            R[step, step + 1 :] += overlap
            Q[:, step + 1 :] -= Q[:, step : step + 1] * overlap
    return Q, R, order


def whole_levels(images: Float[Tensor, "batch c h w"], levels: int | None) -> tuple[Float[Tensor, "batch c h w"], bool]:
    """Images in [0, 1], and whether all pixels are near whole levels, to which they are rounded then; None: never."""
    level = images * (levels or 1)
    near = levels is not None and bool(((level - level.round()).abs() < NEAR_LEVEL).all())
    return (level.round() / (levels or 1) if near else images).clamp(0.0, 1.0), near
