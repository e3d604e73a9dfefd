"""The residual of one victim: what an image would have been shared as, less what was, each number in its own units."""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vjp
from torch.nn.attention import SDPBackend, sdpa_kernel

from attacks.forward_mode import CHUNK, jacobian_transposed
from attacks.noise import clipped_noise, noise_of, std_before_clip
from attacks.optimization.matching.local_steps import UpdateMap, unit_scale
from attacks.optimization.problem import Problem, clip_norm, make_update_map, pruned_before_clip, shared_update
from attacks.optimization.second_order.errors import autocast_of, reads_adam, repeats_adam, rounding_of
from attacks.optimization.second_order.steps.levenberg_marquardt import NormalEquations
from attacks.optimization.second_order.steps.sketch import Pieces
from attacks.victim import make_victim
from fedsim.bounds.gaussian_prior import ImagePrior
from fedsim.bounds.rounding import MIN_SHARE, row_norms
from fedsim.effects import Sparsifies
from fedsim.update import State

ROW_WEIGHT = 3.0
ROUNDINGS = 8.0
DROWNED = 0.1
"""Of the root mean square of its tensor, what Adam's arithmetic may leave of a number that counts by the norm of it."""
LIKELY, APART = 4, 2.0
"""Images of which is computed what arithmetic leaves, and how much more it may be of another."""
TINY = 1e-30
"""Any finite error, of an entry that counts for nothing."""
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
    rounds = [_round(one, local, prior, labels, device, dtype) for one in problem.rounds]
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


def _by_norm(one: "_Round", images: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Residual:
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


@dataclass(frozen=True)
class _Round:
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


def _round(
    problem: Problem, local: str, prior: ImagePrior, labels: Tensor, device: torch.device, dtype: torch.dtype
) -> _Round:
    observation, (update, names) = problem.observation, _update_map(problem, local, device, dtype)
    target = {name: problem.target[name].double() for name in names if name in problem.target}
    kept = _kept(problem, target, dtype)
    scale = unit_scale(observation)
    behind = clipped_noise(observation, target, scale)
    signal = _norm_at_mean(problem, update, prior, labels, dtype) if behind else 0.0
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
    weights = _flat(_norm_weights(target, observation.roles.pos_embed))
    if repeats_adam(observation, local):
        about = list(target), labels, local, kept, behind
        error = torch.hypot(error, _arithmetic(problem, prior, device, *about))
        sizes = _flat({name: tensor.square().mean().sqrt().expand_as(tensor) for name, tensor in target.items()})
        weights = torch.where(error > DROWNED * sizes, 0.0, weights)  # their errors would be the floor's
    if kept is not None and not adaptive:
        mask = _flat(kept).double()
        weights, error, numbers = weights * mask, torch.where(mask > 0, error, TINY), int(mask.sum())
    shared = _shared(problem, update, list(target), labels, local, kept, behind)
    noisy = noise is not None or adaptive
    return _Round(shared, _flat(target), weights, error, tuple(target), numbers, noisy, _moved(problem))


def _update_map(problem: Problem, local: str, device: torch.device, dtype: torch.dtype) -> tuple[UpdateMap, list[str]]:
    """What images are shared as, computed in that precision, and which tensors are trained."""
    victim = make_victim(problem.observation, problem.target, device, fused_attention=False)
    victim.model.to(dtype)
    params, fixed, unshared = (_as(part, dtype) for part in (victim.params, victim.fixed, victim.unshared))
    victim = replace(victim, params=params, fixed=fixed, unshared=unshared)
    return make_update_map(local, victim, problem.observation), list(params)


def _arithmetic(
    problem: Problem,
    prior: ImagePrior,
    device: torch.device,
    names: list[str],
    labels: Tensor,
    local: str,
    kept: State | None,
    noise: float,
) -> Float[Tensor, " numbers"]:
    """What the client's own precision leaves of each number: how far it is from float64, of likely images.

    Adam divides by the size of a gradient, and where that is small every rounding counts.
    """
    shape, rng = (problem.count, *problem.observation.image_shape), torch.Generator().manual_seed(0)
    precision = getattr(torch, problem.observation.protocol.precision)
    autocast = torch.autocast(device.type, precision, enabled=precision != torch.float32)
    rough, exact = (
        _shared(
            problem,
            _update_map(problem, local, device, dtype)[0],
            names,
            labels,
            local,
            None if kept is None else {name: mask.to(dtype) for name, mask in kept.items()},
            noise,
        )
        for dtype in (torch.float32, torch.float64)
    )
    squares = []
    for _ in range(LIKELY):
        images = problem.observation.normalised(prior.draw(shape, rng).clamp(0.0, 1.0)).to(device)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            wanted = exact(images.double())
            with autocast:
                found = rough(images.float())
        apart = [(one.double() - other).flatten() for one, other in zip(found, wanted, strict=True)]
        squares.append(torch.cat(apart).square())
    return APART * torch.stack(squares).mean(dim=0).sqrt()


def _shared(
    problem: Problem,
    update: UpdateMap,
    names: list[str],
    labels: Tensor,
    local: str,
    kept: State | None,
    noise: float,
) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """What images give.

    Args:
        noise: ‖n‖², of noise that was clipped with the rest.
    """
    limit = clip_norm(problem.observation, local)
    scale = unit_scale(problem.observation)
    relative = 0.0 if limit is None else std_before_clip(problem.observation, scale, limit)[1]
    bound = None if limit is None else _bound(problem, local, limit, counted=bool(noise or relative))
    left = kept if kept is not None and pruned_before_clip(problem.observation) else None

    def shared(images: Tensor) -> tuple[Tensor, ...]:
        found = update({"images": images, "labels": labels})
        tensors = tuple(found[name] for name in names)
        if bound is not None:
            counted = found if left is None else {name: found[name] * one for name, one in left.items()}
            squares = torch.stack([tensor.square().sum() for tensor in counted.values()]).sum()
            whole = (squares * (1.0 + relative**2) + noise).sqrt()
            tensors = tuple(tensor * (bound / whole.clamp(min=1e-30)).clamp(max=1.0) for tensor in tensors)
        return tensors if kept is None else tuple(t * kept[n] for n, t in zip(names, tensors, strict=True))

    return shared


def _bound(problem: Problem, local: str, bound: float, counted: bool) -> float:
    """The norm that the target was scaled down to: what was shared and is no part of it counted in the clip's.

    Noise behind the clip did not count: its expected part is taken off what is no part of the target.

    Args:
        bound: of the clip.
        counted: noise was clipped with the rest.
    """
    observation = problem.observation
    states = shared_update(observation, local, torch.device("cpu")), problem.target
    whole, own = map(_squares, states)
    if math.isclose(whole, own):
        return bound
    beside, scale = whole - own, unit_scale(observation)
    if not counted:
        noise = [_squares(noise_of(observation, state, scale) or {}) for state in states]
        beside = max(beside - noise[0] + noise[1], 0.0)
        if any(noise) and beside >= bound**2:  # the noise hides how much it was: about as much of each number
            numbers = [sum(tensor.numel() for tensor in state.values()) for state in states]
            return bound * math.sqrt(numbers[1] / numbers[0])
    return math.sqrt(max(bound**2 - beside, 0.0))


def _squares(state: State) -> float:
    return math.fsum(float(tensor.double().square().sum()) for tensor in state.values())


def _norm_at_mean(problem: Problem, update: UpdateMap, prior: ImagePrior, labels: Tensor, dtype: torch.dtype) -> float:
    """What is shared of the mean of images, as a norm: for want of that of the true ones, before noise."""
    observation, shape = problem.observation, (problem.count, *problem.observation.image_shape)
    images = observation.normalised(prior.centre(shape)).to(labels.device, dtype)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        found = update({"images": images, "labels": labels})
    return float(torch.stack([tensor.square().sum() for tensor in found.values()]).sum().sqrt())


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


def _norm_weights(target: State, position: str | None) -> State:
    """1/‖f*_t‖ for each tensor; for each row of the position embedding, whose class token would drown the others."""
    whole = float(torch.stack([tensor.norm() for tensor in target.values()]).norm())
    found = {n: torch.full_like(t, 1.0 / max(float(t.norm()), MIN_SHARE * whole, 1e-300)) for n, t in target.items()}
    if position in target:
        rows = target[position].flatten(0, -2)
        norms = row_norms(rows)
        norms = norms.clamp(min=1e-300) if norms.any() else torch.ones_like(norms)
        weights = ROW_WEIGHT / (norms * len(rows) ** 0.5)
        found[position] = weights.expand_as(rows).reshape_as(target[position])
    return found


def _flat(state: State) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in state.values()])


def _as(state: State, dtype: torch.dtype) -> State:
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in state.items()}
