"""One round's numbers: which count, by what weight, and how far each may be off."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.noise import clipped_noise, noise_of
from attacks.optimization.matching.local_steps import unit_scale
from attacks.optimization.problem import Problem
from attacks.optimization.second_order.residual.client_computation import (
    arithmetic,
    norm_at_mean,
    shared_by,
    update_map,
)
from attacks.optimization.second_order.residual.errors import autocast_of, reads_adam, repeats_adam, rounding_of
from fedsim.bounds.gaussian_prior import ImagePrior
from fedsim.bounds.rounding import MIN_SHARE, row_norms
from fedsim.effects import Sparsifies
from fedsim.update import State

ROW_WEIGHT = 3.0
ROUNDINGS = 8.0
DROWNED = 0.1
"""Of the root mean square of its tensor, what Adam's arithmetic may leave of a number that counts by the norm of it."""
TINY = 1e-30
"""Any finite error, of an entry that counts for nothing."""


@dataclass(frozen=True)
class OneRound:
    """One round's part of a residual, by images as the model reads them.

    Attributes:
        error: how far each shared number may be off.
        told: how many numbers say more than a sign.
        noisy: defenses add to them, or Adam's step hides them.
        moved: a change of weights, which is rounded as coarsely as each weight is large.
    """

    shared: Callable[[Tensor], tuple[Tensor, ...]]
    target: Float[Tensor, " numbers"]
    weights: Float[Tensor, " numbers"]
    error: Float[Tensor, " numbers"]
    names: tuple[str, ...]
    told: int
    noisy: bool
    moved: bool


def one_round(
    problem: Problem, local: str, prior: ImagePrior, labels: Tensor, device: torch.device, dtype: torch.dtype
) -> OneRound:
    """By images as the model reads them, computed in that precision.

    Args:
        local: how local steps are taken, `auto` resolved.
    """
    observation, (update, names) = problem.observation, update_map(problem, local, device, dtype)
    target = {name: problem.target[name].double() for name in names if name in problem.target}
    kept = _kept(problem, target, dtype)
    scale = unit_scale(observation)
    behind = clipped_noise(observation, target, scale)
    signal = norm_at_mean(problem, update, prior, labels, dtype) if behind else 0.0
    rounding, noise = rounding_of(observation, target, scale, local), noise_of(observation, target, scale, signal)
    numbers, adaptive = sum(tensor.numel() for tensor in target.values()), reads_adam(observation, local)
    if adaptive:  # of the other entries it knows the sign alone
        told = {name: tensor.isfinite().to(dtype) for name, tensor in rounding.items()}
        kept = told if kept is None else {name: mask * kept[name] for name, mask in told.items()}
        target = {name: tensor * kept[name].double() for name, tensor in target.items()}
        rounding = {name: tensor.nan_to_num(posinf=TINY) for name, tensor in rounding.items()}
        numbers = sum(int(mask.sum()) for mask in kept.values())
    error = _flat(rounding) if adaptive else _flat(rounding) * ROUNDINGS
    error = error if noise is None else torch.hypot(_flat(noise), _flat(rounding))
    error = torch.hypot(error, _flat(autocast_of(observation, target)))
    eps = max(float(torch.finfo(observation.global_state[name].dtype).eps) for name in target)
    weights = _flat(_norm_weights(target, observation.roles.pos_embed, eps))
    if repeats_adam(observation, local):
        about = list(target), labels, local, kept, behind
        own = arithmetic(problem, prior, device, *about)
        error = torch.hypot(error, own)
        sizes = _flat({name: tensor.square().mean().sqrt().expand_as(tensor) for name, tensor in target.items()})
        weights = torch.where(own > DROWNED * sizes, 0.0, weights)  # their errors would be the floor's
    if kept is not None and not adaptive:
        mask = _flat(kept).double()
        weights, error, numbers = weights * mask, torch.where(mask > 0, error, TINY), int(mask.sum())
    shared = shared_by(problem, update, list(target), labels, local, kept, behind)
    noisy = noise is not None or adaptive
    return OneRound(shared, _flat(target), weights, error, tuple(target), numbers, noisy, _moved(problem))


def _moved(problem: Problem) -> bool:
    return problem.observation.update.kind != "gradient"


def _kept(problem: Problem, target: State, dtype: torch.dtype) -> State | None:
    """By name 1 where a number counts; None: all do.

    Not what was pruned, nor a tensor of weights that were zero and stayed zero: there is nothing to say how exactly.
    """
    if problem.observation.effect(Sparsifies) is not None:
        return {name: (tensor != 0).to(dtype) for name, tensor in target.items()}
    state = problem.observation.global_state
    silent = [n for n, t in target.items() if _moved(problem) and not bool(t.any()) and not bool(state[n].any())]
    if not silent:
        return None
    return {n: torch.full_like(t, float(n not in silent), dtype=dtype) for n, t in target.items()}


def _norm_weights(target: State, position: str | None, eps: float) -> State:
    """1/‖f*_t‖ for each tensor; for each row of the position embedding, whose class token would drown the others.

    None for a tensor that is no more than a rounding of the whole, as the bias in front of a BatchNorm.
    """
    norms = {name: float(tensor.norm()) for name, tensor in target.items()}
    whole = math.hypot(*norms.values())
    found = {
        n: torch.full_like(t, 0.0 if 0.0 < norms[n] <= eps * whole else 1.0 / max(norms[n], MIN_SHARE * whole, 1e-300))
        for n, t in target.items()
    }
    if position in target:
        rows = target[position].flatten(0, -2)
        each = row_norms(rows)
        each = each.clamp(min=1e-300) if each.any() else torch.ones_like(each)
        weights = ROW_WEIGHT / (each * len(rows) ** 0.5)
        found[position] = weights.expand_as(rows).reshape_as(target[position])
    return found


def _flat(state: State) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in state.values()])
