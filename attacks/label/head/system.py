"""The equations that a batch's head gradient puts on its features, for given labels, and their solution.

A batch of B gives the head G = [∂L/∂W, ∂L/∂b] = (1/B) Rᵀ [H, 1] with R = softmax(H Wᵀ + b) - Y. For B < C the rows
of [H, 1] lie in the row space of G: with the compact SVD G = P S Qᵀ of rank r <= B they are M Qᵀ, and what is left
to find is M in R^{B×r}, whose product with Qᵀ's last column is 1. That leaves B (r - 1) unknowns for (C - 1) r
equations, whatever the width of the head: the right counts solve them, wrong ones do not.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

STARTS = ((0.0, 0.3), (0.9, 0.1), (0.0, 1.0), (0.5, 0.3))
"""In turn: how sure of a drawn class an example is taken to be, and how far apart the examples are set, relatively."""
LEAST_ERROR, MOST_ERROR = 1e-6, 0.9
"""Of an example that is taken for one of which the model is sure, and rightly."""
ELSEWHERE = 0.02
"""Of the mean error, what any other class is given of such an example's at least."""
WINDOW, STILL = 20, 0.9
"""A start has settled where its squared residual fell by less than a tenth in so many iterations."""


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
        smallest: the B-th singular value over ‖G‖.

    M covers every feature only where r = B: below, errors p - y may depend on each other, and what these add to
    features leaves no trace in G.
    """

    target: Float[Tensor, "classes rank"]
    head: Float[Tensor, "classes rank"]
    basis: Float[Tensor, "rank columns"]
    origin: Float[Tensor, "rank"]
    directions: Float[Tensor, "rank free"]
    scale: float
    outside: float
    condition: float
    smallest: float


@dataclass(frozen=True)
class CountSolution:
    """The best of the starts for each count vector.

    Attributes:
        settled: no start was still falling, and none failed: else a large residual says nothing.
        share: of the starts that came to `enough`.
    """

    rows: Float[Tensor, "problems batch rank"]
    errors: Float[Tensor, "problems batch classes"]
    residual: Float[Tensor, "problems"]
    settled: Bool[Tensor, "problems"]
    share: Float[Tensor, "problems"]


def head_system(
    weights: Float[Tensor, "classes columns"], gradient: Float[Tensor, "classes columns"], batch_size: int, eps: float
) -> HeadSystem:
    """The equations for [W, b] and G; a rank below B (an example twice) is read off the singular values."""
    left, values, right = torch.linalg.svd(gradient, full_matrices=False)
    rank = max(1, int((values[:batch_size] > eps * values[0]).sum()))
    scale = gradient.norm().clamp(min=1e-300)
    smallest = float(values[batch_size - 1] / scale)
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
        smallest=smallest,
    )


def solve_rows(
    system: HeadSystem,
    labels: Int[Tensor, "problems batch"],
    label_smoothing: float,
    starts: int,
    iterations: int,
    enough: float,
    rng: torch.Generator,
    first: Float[Tensor, "problems batch rank"] | None = None,
    every: bool = False,
) -> CountSolution:
    """Levenberg-Marquardt for all count vectors and starts at once, each until its residual falls below `enough`, or
    no further.

    Args:
        first: rows from which one start more sets out, for each count vector.
        every: go on with starts of counts of which another has come to `enough`.
    """
    classes = len(system.target)
    targets = torch.nn.functional.one_hot(labels, classes).double()
    targets = (1.0 - label_smoothing) * targets + label_smoothing / classes
    sure = starts // 2
    free = torch.cat([_unsure(system, targets, starts - sure, rng), _sure(system, targets, sure, rng)], dim=1)
    free = free.flatten(0, 1)
    if first is not None:
        given = (first - system.origin) @ system.directions
        given = given + 1e-3 * given.norm(dim=(1, 2), keepdim=True) * _noise(given, rng)
        free = torch.cat([free.unflatten(0, (-1, starts)), given[:, None]], dim=1).flatten(0, 1)
        starts += 1
    targets = targets.repeat_interleave(starts, dim=0)
    rows, errors, defect = _evaluate(system, free, targets)
    loss = defect.square().sum(dim=(1, 2))
    damping = torch.full_like(loss, 1e-2)
    goal = (enough * system.scale) ** 2
    settled = (loss < goal) | (free.shape[2] == 0)
    before = loss.clone()
    for iteration in range(1, iterations + 1):
        enough_of = (loss < goal).view(-1, starts).any(dim=1).repeat_interleave(starts) & (not every)
        active = (~settled & ~enough_of).nonzero().flatten()
        if not len(active):
            break
        state = rows[active], errors[active], defect[active]
        hessian, slope = normal_equations(system, free[active], *state)
        size = hessian.diagonal(dim1=1, dim2=2)
        damped = hessian + torch.diag_embed(damping[active, None] * size + 1e-14 * size.amax(dim=1, keepdim=True))
        factor, failed = torch.linalg.cholesky_ex(damped)
        step = torch.cholesky_solve(slope[:, :, None], factor).view_as(free[active])
        trial = _evaluate(system, free[active] - step, targets[active])
        trial_loss = trial[2].square().sum(dim=(1, 2))
        better = (trial_loss < loss[active]) & (failed == 0)
        moved = active[better]
        free[moved] -= step[better]
        rows[moved], errors[moved], defect[moved] = (new[better] for new in trial)
        loss[moved] = trial_loss[better]
        damping[active] = torch.where(better, damping[active] * 0.2, damping[active] * 4.0).clamp(1e-12, 1e8)
        if iteration % WINDOW == 0:
            settled[active] = ((loss[active] > STILL * before[active]) & (failed == 0)) | (loss[active] < goal)
            before = loss.clone()
    residual = (loss.sqrt() / system.scale).view(-1, starts).nan_to_num(nan=torch.inf)
    done = (settled & loss.isfinite()).view(-1, starts)
    least, best = residual.min(dim=1)
    at = best + starts * torch.arange(len(labels))
    share = (residual < enough).double().mean(dim=1)
    return CountSolution(rows[at], errors[at], least, done.all(dim=1) | (least < enough), share)


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


def _unsure(
    system: HeadSystem, targets: Float[Tensor, "problems batch classes"], starts: int, rng: torch.Generator
) -> Float[Tensor, "problems starts batch free"]:
    """As if every example had the batch's mean softmax, which counts and ∂L/∂b give, or in turn were surer of a class
    drawn from it, as a trained model is; then apart at random: examples of one class would begin as one and stay it.
    """
    problems, batch, _ = targets.shape
    mean_probs = (_total(system) / batch + targets.mean(dim=1)).clamp(min=1e-4)
    mean_probs = mean_probs / mean_probs.sum(dim=1, keepdim=True)
    kinds = [STARTS[number % len(STARTS)] for number in range(starts)] * problems
    sure, apart = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in zip(*kinds, strict=True))
    mean_probs, targets = (values.repeat_interleave(starts, dim=0) for values in (mean_probs, targets))
    drawn = torch.multinomial(mean_probs, batch, replacement=True, generator=rng)
    drawn = torch.nn.functional.one_hot(drawn, targets.shape[2])
    errors = (1.0 - sure) * mean_probs[:, None] + sure * drawn - targets
    free = _free(system, errors)
    size = free.norm(dim=2, keepdim=True).mean(dim=1, keepdim=True) / max(1, free.shape[2]) ** 0.5
    started: Tensor = free + apart * size * _noise(free, rng)
    return started.view(problems, starts, *free.shape[1:])


def _sure(
    system: HeadSystem, targets: Float[Tensor, "problems batch classes"], starts: int, rng: torch.Generator
) -> Float[Tensor, "problems starts batch free"]:
    """As if the model were sure of each example's own label: its error is what ∂L/∂b tells of that class in all, and
    goes to the other classes as there; both but for factors drawn for each example.
    """
    problems, total = len(targets), _total(system)
    label = targets.argmax(dim=2).repeat_interleave(starts, dim=0)
    own = torch.nn.functional.one_hot(label, targets.shape[2]).double()
    each = (total.abs() / own.sum(dim=1).clamp(min=1.0)).gather(1, label).clamp(min=LEAST_ERROR)
    size = (each * _noise(each, rng).exp()).clamp(max=MOST_ERROR)
    others = (
        (total.clamp(min=0.0) + ELSEWHERE * total.abs().mean() + LEAST_ERROR) * _noise(own, rng).exp() * (1.0 - own)
    )
    errors = size[:, :, None] * (others / others.sum(dim=2, keepdim=True) - own)
    free = _free(system, errors)
    return free.view(problems, starts, *free.shape[1:])


def _total(system: HeadSystem) -> Float[Tensor, "classes"]:
    """B ∂L/∂b, the errors of all examples together."""
    return system.target @ system.basis[:, -1]


def _free(system: HeadSystem, errors: Float[Tensor, "starts batch classes"]) -> Float[Tensor, "starts batch free"]:
    """The unknowns that explain G the best with these errors."""
    rows = torch.linalg.pinv(errors.transpose(1, 2), rtol=1e-6) @ system.target
    free: Tensor = (rows - system.origin) @ system.directions
    return free


def _noise(like: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=rng, dtype=torch.float64)
