"""The solution of a head's equations for given labels, from many starts at once."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attacks.label.head.starts import standard_normal, where_sure, where_unsure
from attacks.label.head.system import HeadSystem, evaluate, normal_equations

FIRST, LONG = 200, 600
"""Iterations for each labels at first, and for what is not settled then."""
FEWEST_STARTS, MOST_STARTS, STARTS_OF_ONE = 6, 48, 768
"""For each labels: the last over the square of the number of examples."""
ROUNDS_OF_ONE = 2304
"""How often labels are tried whose solution no start has found: over their number and over that square."""
WINDOW, STILL = 20, 0.9
"""A start has settled where its squared residual fell by less than a tenth in so many iterations."""


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
    half = starts // 2
    drawn = where_unsure(system, targets, starts - half, rng), where_sure(system, targets, half, rng)
    free = torch.cat(drawn, dim=1).flatten(0, 1)
    if first is not None:
        given = (first - system.origin) @ system.directions
        given = given + 1e-3 * given.norm(dim=(1, 2), keepdim=True) * standard_normal(given, rng)
        free = torch.cat([free.unflatten(0, (-1, starts)), given[:, None]], dim=1).flatten(0, 1)
        starts += 1
    targets = targets.repeat_interleave(starts, dim=0)
    rows, errors, defect = evaluate(system, free, targets)
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
        trial = evaluate(system, free[active] - step, targets[active])
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


def number_of_starts(batch_size: int) -> int:
    """Of the solver for counts of so many examples, in whose number the time of each grows faster than this falls."""
    return min(MOST_STARTS, max(FEWEST_STARTS, STARTS_OF_ONE // batch_size**2))
