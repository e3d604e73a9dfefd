"""The residual of one victim: what an image would have been shared as, less what was, each number in its own units."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vjp

from attacks.forward_mode import CHUNK, jacobian_transposed
from attacks.optimization.problem import Problem
from attacks.optimization.second_order.residual.one_round import TINY, OneRound, one_round
from attacks.optimization.second_order.steps.levenberg_marquardt import NormalEquations
from attacks.optimization.second_order.steps.sketch import Pieces
from fedsim.bounds.gaussian_prior import ImagePrior

LEFT_BY_ONE, LEFT_BY_SEVERAL = 0.25, 0.5
"""Of ‖r‖² at the mean, what an image, and images of a batch, may leave where errors do not: else they are wrong."""


@dataclass(frozen=True)
class Residual:
    """r(x) = W(f(x) - f*), and with a prior C^-½(x - μ) besides; x are the unknowns of the search.

    Attributes:
        weights: W, one for each shared number.
        names: of the tensors, in their order.
        floor: ‖r‖² that the errors of what was shared leave at the true image, about.
        errors: of each number that leaves them, in units of its row; None: each leaves 1. Of float64 alone.
        rounds: the same rows in parts, one for each of several rounds; the first has the prior's.
    """

    shared: Callable[[Tensor], tuple[Tensor, ...]]
    target: Float[Tensor, " numbers"]
    weights: Float[Tensor, " numbers"]
    floor: float
    names: tuple[str, ...] = ()
    errors: Float[Tensor, " numbers"] | None = None
    before: Callable[[Tensor], Tensor] | None = None
    rounds: tuple["Residual", ...] = ()

    def __call__(self, x: Float[Tensor, " unknowns"]) -> Float[Tensor, " rows"]:
        found = self.weights * (torch.cat([tensor.flatten() for tensor in self.shared(x)]) - self.target)
        return found if self.before is None else torch.cat([found, self.before(x)])

    def of(self, point: Callable[[Tensor], Tensor]) -> "Residual":
        """Of unknowns that stand for these by a map."""
        shared, before = self.shared, self.before
        behind = None if before is None else lambda x: before(point(x))
        rounds = tuple(one.of(point) for one in self.rounds)
        return replace(self, shared=lambda x: shared(point(x)), before=behind, rounds=rounds)

    def by_errors(self) -> "Residual":
        """Each row in units of its number's error."""
        if self.errors is None:
            return self
        weights = torch.where(self.errors > 0.0, self.weights / self.errors, 0.0)
        rounds = tuple(one.by_errors() for one in self.rounds)
        return replace(self, weights=weights, floor=float((weights > 0.0).sum()), errors=None, rounds=rounds)

    def pieces(self) -> Pieces:
        """The same, tensor by tensor."""
        return Pieces(self._tensors, self.weights, self.target)

    def jacobian(self, x: Float[Tensor, " unknowns"], together: int = CHUNK) -> Float[Tensor, "rows unknowns"]:
        """J whole, in float64, `together` columns at a time."""
        return jacobian_transposed(self._tensors, x, together, self.weights).T

    def normal(self, x: Float[Tensor, " unknowns"], together: int = CHUNK) -> NormalEquations:
        """‖r‖², JᵀJ and Jᵀr, by one round's J after the other."""
        parts = (NormalEquations.of(one(x), one.jacobian(x, together)) for one in self.rounds or (self,))
        return reduce(operator.add, parts)

    def transposed(self, x: Float[Tensor, " unknowns"], w: Float[Tensor, " rows"]) -> Float[Tensor, " unknowns"]:
        """Jᵀw, by one round after the other: of several the rows of the prior, which the first has, are the last."""
        parts, found = self.rounds or (self,), torch.zeros_like(x)
        *each, prior = w.split([*(len(one.target) for one in parts), len(w) - sum(len(one.target) for one in parts)])
        for one, own in zip(parts, each, strict=True):
            with torch.enable_grad():
                back = vjp(one, x)[1]
            found += back(own if one.before is None else torch.cat([own, prior]))[0]
        return found

    def _tensors(self, x: Float[Tensor, " unknowns"]) -> tuple[Tensor, ...]:
        """Without target and weights."""
        return self.shared(x) if self.before is None else (*self.shared(x), self.before(x))


def shape_of(problem: Problem) -> tuple[int, ...]:
    """Of the point that is searched for."""
    return tuple(problem.space.initial(torch.Generator().manual_seed(0)).shape)


def make_residuals(
    problem: Problem,
    local: str,
    prior: ImagePrior,
    labels: Tensor,
    device: torch.device,
    point: Callable[[Tensor], Tensor] = lambda x: x,
    dtype: torch.dtype = torch.float64,
) -> list[Residual]:
    """By tensor norms first; where errors differ from number to number, in units of them after.

    Those are changes of weights and, with the prior besides, noise.

    Args:
        local: how local steps are taken, `auto` resolved.
        point: of the problem's space, flat, from the unknowns.
        dtype: that the client's computation is repeated in.
    """
    rounds = [one_round(one, local, prior, labels, device, dtype) for one in problem.rounds]
    shape = shape_of(problem)

    def images(x: Tensor) -> Tensor:
        found: Tensor = problem.space.images(point(x).view(1, *shape))[0]
        return found

    def before(x: Tensor) -> Tensor:
        return prior.whitened(problem.observation.to_unit_range(images(x))).flatten()

    each = [_by_norm(one, images, dtype) for one in rounds]
    noisy = any(one.noisy for one in rounds)
    if not noisy and not any(one.moved for one in rounds):
        return [_together(each)]
    weighed = [
        replace(
            by_norm,
            weights=torch.where(one.error > TINY, 1.0 / one.error, 0.0).to(dtype),
            floor=float(one.told),
            errors=None,
        )
        for one, by_norm in zip(rounds, each, strict=True)
    ]
    if noisy:
        weighed[0] = replace(weighed[0], before=before)
    return [_together(each), _together(weighed)]


def _by_norm(one: OneRound, images: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Residual:
    errors = one.weights * one.error
    target, weights, floor = one.target.to(dtype), one.weights.to(dtype), float(errors.square().sum())
    held = errors if dtype == torch.float64 else None
    return Residual(lambda x: one.shared(images(x)), target, weights, floor, one.names, held)


def _together(each: Sequence[Residual]) -> Residual:
    """Of the same unknowns: one's rows after the other's, those of the prior last."""
    if len(each) == 1:
        return each[0]
    return Residual(
        lambda x: tuple(tensor for one in each for tensor in one.shared(x)),
        torch.cat([one.target for one in each]),
        torch.cat([one.weights for one in each]),
        sum(one.floor for one in each),
        tuple(dict.fromkeys(name for one in each for name in one.names)),
        None if each[0].errors is None else torch.cat([one.errors for one in each if one.errors is not None]),
        each[0].before,
        tuple(each),
    )
