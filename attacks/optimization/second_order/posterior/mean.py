"""The mean of a posterior by Hamiltonian Monte Carlo: of all images that explain an update, not the likeliest one."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

LEAPS = 8
"""Steps along one trajectory."""
FIRST_STEP = 0.3
"""In units of the posterior's width at its start."""
WANTED_ACCEPTANCE = 0.7
WARM_UP, MOST_WARM_UP = 0.25, 25
"""Share of the draws that find the step and are not counted, and how many at most."""
FIRST_RATE = 0.4
"""Of the step's adaptation."""
ENOUGH = 0.01
"""Squared error of the mean, in posterior variances, at which no more is drawn: it costs the result 0.04 dB."""
BLOCK, LEAST_BLOCKS = 10, 4
"""Draws whose means are taken as independent, and so many of them before the error of their mean is believed."""


@dataclass(frozen=True)
class PosteriorMean:
    """What a chain found.

    Attributes:
        mean: of its draws.
        variance: of each unknown among them: how far the mean may be off, as far as the chain got around.
        accepted: share of trajectories.
        draws: that were counted.
    """

    mean: Float[Tensor, " unknowns"]
    variance: Float[Tensor, " unknowns"]
    accepted: float
    draws: int


def posterior_mean(
    residual: Callable[[Tensor], Float[Tensor, " rows"]],
    start: Float[Tensor, " unknowns"],
    normal: Float[Tensor, "unknowns unknowns"],
    draws: int,
    rng: torch.Generator,
    progress: Callable[[int], None] = lambda draw: None,
    enough: float = ENOUGH,
) -> PosteriorMean:
    """Of the density exp(-‖r(x)‖²/2), whose least squared error no estimate passes where model and prior are right.

    Hamiltonian Monte Carlo (Duane et al. 1987; Neal 2011) with JᵀJ at the start as its mass, and a step that is adapted
    to the acceptance before draws count. The slopes along the way, whose mean is zero, are its control variates
    (Assaraf and Caffarel 1999): of a Gaussian posterior one draw and its slope give the mean.

    Args:
        residual: in units of standard deviations, the prior's rows included.
        normal: JᵀJ of the residual at the start.
        draws: at most.
        progress: is called with the number of each draw.
        enough: squared error of the mean, in posterior variances, at which it ends; 0: after all draws.
    """
    factor, width = factors(normal)
    x, here = start, _potential(residual, start)
    step, warm_up = FIRST_STEP, max(1, min(MOST_WARM_UP, round(WARM_UP * draws)))
    places, slopes, accepted = list[Tensor](), list[Tensor](), 0
    for draw in range(warm_up + draws):
        progress(draw)
        momentum = _normal(start, rng)
        jittered = step * (0.8 + 0.4 * float(torch.rand((), generator=rng)))
        end, there, last = _trajectory(residual, x, here, momentum, width, jittered)
        change = here.value - there.value + 0.5 * float(momentum @ momentum - last @ last)
        chance = math.exp(min(0.0, change)) if math.isfinite(change) else 0.0
        if float(torch.rand((), generator=rng)) < chance:
            x, here = end, there
            accepted += draw >= warm_up
        if draw < warm_up:
            step *= math.exp(FIRST_RATE / math.sqrt(draw + 1) * (chance - WANTED_ACCEPTANCE))
            continue
        places.append(factor.T @ (x - start))
        slopes.append(width.T @ here.slope)
        blocks, rest = divmod(len(places), BLOCK)
        if rest == 0 and blocks >= LEAST_BLOCKS and _settled(places, slopes, width, enough):
            break
    steadier = _with_control(torch.stack(places), torch.stack(slopes))
    variance = (torch.stack(places) @ width.T).var(dim=0, correction=0)
    return PosteriorMean(start + width @ steadier.mean(dim=0), variance, accepted / len(places), len(places))


def factors(normal: Float[Tensor, "n n"]) -> tuple[Float[Tensor, "n n"], Float[Tensor, "n n"]]:
    """F with FFᵀ = JᵀJ, and its inverse transposed; eigenvalues below rounding are taken as large as that."""
    factor, failed = torch.linalg.cholesky_ex(normal)
    if not int(failed):
        identity = torch.eye(len(normal), dtype=normal.dtype, device=normal.device)
        return factor, torch.linalg.solve_triangular(factor, identity, upper=False).T
    values, vectors = torch.linalg.eigh(normal)
    roots = values.clamp(min=len(values) * torch.finfo(values.dtype).eps * float(values[-1])).sqrt()
    return vectors * roots, vectors / roots


def _with_control(
    places: Float[Tensor, "draws unknowns"], slopes: Float[Tensor, "draws unknowns"]
) -> Float[Tensor, "draws unknowns"]:
    """The same expectation with less variance: less c·slope, c of each unknown by least squares."""
    centred = slopes - slopes.mean(dim=0)
    power = centred.square().sum(dim=0).clamp(min=torch.finfo(slopes.dtype).tiny)
    return places - slopes * ((centred * places).sum(dim=0) / power)


def _settled(places: list[Tensor], slopes: list[Tensor], width: Tensor, enough: float) -> bool:
    """Means of blocks say how far their mean may be off, slow directions included that single draws hide."""
    drawn = torch.stack(places)
    means = (_with_control(drawn, torch.stack(slopes)) @ width.T).unflatten(0, (-1, BLOCK)).mean(dim=1)
    error = float(means.var(dim=0).sum()) / len(means)
    return error < enough * float((drawn @ width.T).var(dim=0).sum())


@dataclass(frozen=True)
class _Potential:
    value: float
    slope: Float[Tensor, " unknowns"]


def _potential(residual: Callable[[Tensor], Tensor], x: Tensor) -> _Potential:
    at = x.detach().requires_grad_()
    with torch.enable_grad():
        value = 0.5 * residual(at).square().sum()
        slope = torch.autograd.grad(value, at)[0]
    return _Potential(float(value.detach()), slope)


def _trajectory(
    residual: Callable[[Tensor], Tensor],
    x: Tensor,
    here: _Potential,
    momentum: Tensor,
    width: Tensor,
    step: float,
) -> tuple[Tensor, _Potential, Tensor]:
    """Leapfrog in the coordinates z of x = width·z, where the posterior is about round."""
    there = here
    momentum = momentum - 0.5 * step * (width.T @ there.slope)
    for leap in range(LEAPS):
        x = x + step * (width @ momentum)
        there = _potential(residual, x)
        last = leap + 1 == LEAPS
        momentum = momentum - (0.5 if last else 1.0) * step * (width.T @ there.slope)
    return x, there, momentum


def _normal(like: Tensor, rng: torch.Generator) -> Tensor:
    """Drawn on the CPU, so that a GPU draws the same."""
    return torch.randn(like.shape, generator=rng, dtype=like.dtype).to(like.device)
