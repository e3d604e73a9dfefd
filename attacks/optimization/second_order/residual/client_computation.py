"""What images would be shared as, in either precision, and what that of the client leaves of each number."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attacks.noise import noise_of, std_before_clip
from attacks.optimization.matching.local_steps import UpdateMap, unit_scale
from attacks.optimization.problem import Problem, clip_norm, make_update_map, pruned_before_clip, shared_update
from attacks.victim import make_victim
from fedsim.bounds.gaussian_prior import ImagePrior
from fedsim.update import State

LIKELY, APART = 4, 2.0
"""Images of which is computed what arithmetic leaves, and how much more it may be of another."""


def update_map(problem: Problem, local: str, device: torch.device, dtype: torch.dtype) -> tuple[UpdateMap, list[str]]:
    """What images are shared as, computed in that precision, and which tensors are trained."""
    victim = make_victim(problem.observation, problem.target, device, fused_attention=False)
    victim.model.to(dtype)
    params, fixed, unshared = (_as(part, dtype) for part in (victim.params, victim.fixed, victim.unshared))
    victim = replace(victim, params=params, fixed=fixed, unshared=unshared)
    return make_update_map(local, victim, problem.observation), list(params)


def arithmetic(
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
        shared_by(
            problem,
            update_map(problem, local, device, dtype)[0],
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


def shared_by(
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


def norm_at_mean(problem: Problem, update: UpdateMap, prior: ImagePrior, labels: Tensor, dtype: torch.dtype) -> float:
    """What is shared of the mean of images, as a norm: for want of that of the true ones, before noise."""
    observation, shape = problem.observation, (problem.count, *problem.observation.image_shape)
    images = observation.normalised(prior.centre(shape)).to(labels.device, dtype)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        found = update({"images": images, "labels": labels})
    return float(torch.stack([tensor.square().sum() for tensor in found.values()]).sum().sqrt())


def _as(state: State, dtype: torch.dtype) -> State:
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in state.items()}
