"""The equations that a batch's head gradient puts on its features, for given labels, and their solution.

A batch of B gives the head G = [∂L/∂W, ∂L/∂b] = (1/B) Rᵀ [H, 1] with R = softmax(H Wᵀ + b) - Y. For B < C the rows
of [H, 1] lie in the row space of G: with the compact SVD G = P S Qᵀ of rank r <= B they are M Qᵀ, and what is left
to find is M in R^{B×r}, whose product with Qᵀ's last column is 1. That leaves B (r - 1) unknowns for (C - 1) r
equations, whatever the width of the head: the right counts solve them, wrong ones do not.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class HeadSystem:
    """The equations in the row space of G.

    Attributes:
        target: B P S, what Rᵀ M has to be.
        head: [W, b] Q, so that the logits are M headᵀ.
        basis: Qᵀ.
        origin, directions: M = origin + T directionsᵀ has a last feature of 1, and directions ⟂ origin.
        scale: B ‖G‖.
        outside: the part of G outside its first B singular vectors or its zero column sums, relative.
        condition: largest over smallest singular value.
    """

    target: Float[Tensor, "classes rank"]
    head: Float[Tensor, "classes rank"]
    basis: Float[Tensor, "rank columns"]
    origin: Float[Tensor, "rank"]
    directions: Float[Tensor, "rank free"]
    scale: float
    outside: float
    condition: float


@dataclass(frozen=True)
class Solution:
    """The best of the starts for each count vector."""

    rows: Float[Tensor, "problems batch rank"]
    errors: Float[Tensor, "problems batch classes"]
    residual: Float[Tensor, "problems"]


def head_system(
    weights: Float[Tensor, "classes columns"], gradient: Float[Tensor, "classes columns"], batch_size: int, eps: float
) -> HeadSystem:
    """The equations for [W, b] and G; a rank below B (an example twice) is read off the singular values."""
    left, values, right = torch.linalg.svd(gradient, full_matrices=False)
    rank = max(1, int((values[:batch_size] > eps * values[0]).sum()))
    scale = gradient.norm().clamp(min=1e-300)
    tail = float(values[rank:].norm() / scale)
    sums = float(gradient.sum(dim=0).norm() / scale)
    left, values, basis = left[:, :rank], values[:rank], right[:rank]
    ones = basis[:, -1]
    origin = ones / ones.square().sum().clamp(min=1e-300)
    directions = torch.linalg.svd(ones[None], full_matrices=True).Vh[1:].T
    target = batch_size * left * values
    return HeadSystem(
        target=target,
        head=weights @ basis.T,
        basis=basis,
        origin=origin,
        directions=directions,
        scale=float(batch_size * scale),
        outside=max(tail, sums),
        condition=float(values[0] / values[-1].clamp(min=1e-300)),
    )


def solve_rows(
    system: HeadSystem,
    labels: Int[Tensor, "problems batch"],
    label_smoothing: float,
    starts: int,
    iterations: int,
    enough: float,
    rng: torch.Generator,
) -> Solution:
    """Levenberg-Marquardt for all count vectors and starts at once, until one residual falls below `enough`
    or none falls."""
    classes = len(system.target)
    targets = torch.nn.functional.one_hot(labels, classes).double()
    targets = (1.0 - label_smoothing) * targets + label_smoothing / classes
    free = _initial(system, targets, starts, rng)
    targets = targets.repeat_interleave(starts, dim=0)
    damping = torch.full((len(free), 1), 1e-2, dtype=torch.float64)
    state = _evaluate(system, free, targets)
    loss = state[2].square().sum(dim=(1, 2))
    history, patience = [loss], max(12, iterations // 4)
    for _ in range(iterations if free.shape[2] else 0):
        hessian, slope = normal_equations(system, free, *state)
        size = hessian.diagonal(dim1=1, dim2=2)
        damped = hessian + torch.diag_embed(damping * size + 1e-14 * size.amax(dim=1, keepdim=True))
        factor, failed = torch.linalg.cholesky_ex(damped)
        step = torch.cholesky_solve(slope[:, :, None], factor).view_as(free)
        trial = _evaluate(system, free - step, targets)
        trial_loss = trial[2].square().sum(dim=(1, 2))
        better = (trial_loss < loss) & (failed == 0)
        free = torch.where(better[:, None, None], free - step, free)
        state = tuple(torch.where(better[:, None, None], new, old) for new, old in zip(trial, state, strict=True))
        loss = torch.where(better, trial_loss, loss)
        damping = torch.where(better[:, None], damping * 0.2, damping * 4.0).clamp(1e-12, 1e8)
        history.append(loss)
        if bool((loss < (enough * system.scale) ** 2).any()):
            break
        if len(history) > patience and bool((loss > 0.98 * history[-patience]).all()):
            break
    residual = (loss.sqrt() / system.scale).view(-1, starts)
    best = residual.argmin(dim=1) + starts * torch.arange(len(labels))
    rows, errors = state[0][best], state[1][best]
    return Solution(rows, errors, residual.min(dim=1).values)


def normal_equations(
    system: HeadSystem,
    free: Float[Tensor, "starts batch free"],
    rows: Float[Tensor, "starts batch rank"],
    errors: Float[Tensor, "starts batch classes"],
    defect: Float[Tensor, "starts classes rank"],
) -> tuple[Float[Tensor, "starts unknowns unknowns"], Float[Tensor, "starts unknowns"]]:
    """JᵀJ and Jᵀe of e = Rᵀ M - target in the free unknowns T, without J.

    Column (k, v) of J is R_k ⊗ d_v + ∂p_k/∂T_kv ⊗ M_k for directions d, and M_k · d_v = T_kv.
    """
    probs = torch.softmax(rows @ system.head.T, dim=2)
    turned = system.head @ system.directions
    moved = probs[..., None] * (turned - (probs @ turned)[:, :, None, :])
    cross = torch.einsum("nkc,nlcw->nklw", errors, moved)
    mixed = torch.einsum("nklw,nlv->nkvlw", cross, free)
    flat = moved.transpose(2, 3).flatten(1, 2)
    count, batch, width = free.shape
    curved = (flat @ flat.transpose(1, 2)).view(count, batch, width, batch, width)
    hessian = mixed + mixed.permute(0, 3, 4, 1, 2) + (rows @ rows.transpose(1, 2))[:, :, None, :, None] * curved
    gram = errors @ errors.transpose(1, 2)
    hessian.diagonal(dim1=2, dim2=4).add_(gram[..., None])
    slope = errors @ defect @ system.directions + torch.einsum("nkcv,nkc->nkv", moved, rows @ defect.transpose(1, 2))
    return hessian.reshape(count, batch * width, batch * width), slope.flatten(1)


def feature_error(
    system: HeadSystem, rows: Float[Tensor, "batch rank"], errors: Float[Tensor, "batch classes"], relative: float
) -> float:
    """The largest relative error of a row that an error of `relative`·‖G‖ in the gradient may have led to.

    To first order: that error over J's least singular value, and over the gradient's, by which Q turns.
    """
    size = float(rows.norm(dim=1).min())
    noise = relative * system.scale
    turned = noise / float(system.target.norm(dim=0).min().clamp(min=1e-300))
    if not system.directions.shape[1]:
        return turned
    free = (rows - system.origin) @ system.directions
    defect = errors.T @ rows - system.target
    hessian, _ = normal_equations(system, free[None], rows[None], errors[None], defect[None])
    least = float(torch.linalg.eigvalsh(hessian[0])[0].clamp(min=1e-300).sqrt())
    return noise / (least * size) + turned


def _evaluate(
    system: HeadSystem, free: Float[Tensor, "starts batch free"], targets: Float[Tensor, "starts batch classes"]
) -> tuple[Tensor, ...]:
    """M, R and Rᵀ M - target."""
    rows = system.origin + free @ system.directions.T
    errors = torch.softmax(rows @ system.head.T, dim=2) - targets
    return rows, errors, errors.transpose(1, 2) @ rows - system.target


def _initial(
    system: HeadSystem, targets: Float[Tensor, "problems batch classes"], starts: int, rng: torch.Generator
) -> Float[Tensor, "starts batch free"]:
    """As if every example had the batch's mean softmax, which counts and ∂L/∂b give; then apart at random.

    Examples of one class would begin as one and stay it: noise of 0.3 of their size separates them.
    """
    batch = targets.shape[1]
    bias_grad = system.target @ system.basis[:, -1] / batch
    mean_probs = (bias_grad + targets.mean(dim=1)).clamp(min=1e-4)
    mean_probs = mean_probs / mean_probs.sum(dim=1, keepdim=True)
    errors = mean_probs[:, None] - targets
    rows = torch.linalg.pinv(errors.transpose(1, 2), rtol=1e-6) @ system.target
    free = ((rows - system.origin) @ system.directions).repeat_interleave(starts, dim=0)
    size = free.norm(dim=2, keepdim=True).mean(dim=1, keepdim=True) / max(1, free.shape[2]) ** 0.5
    noise = torch.randn(free.shape, generator=rng, dtype=torch.float64)
    started: Tensor = free + 0.3 * size * noise
    return started
