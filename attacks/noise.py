"""How far defenses move each shared number, as far as they say so."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fedsim.effects import AddsNoise, Clips, Quantises
from fedsim.observation import Observation
from fedsim.update import State

AT_BOUND = 0.99
"""Of the norm of a clip, from which on an update is one that was clipped: half precision rounds."""
OFF, ROUNDED = 0.05, 1e-3
"""Of a step, how far from whole multiples of it values may be that were quantised; and as a share of themselves."""
FEW = 0.3
"""Errors may add so much to the square of a bucket's norm, for that to tell the step that is published."""


def noise_of(
    observation: Observation,
    target: State,
    scale: float,
    signal: float = 0.0,
    of: Callable[[AddsNoise | Quantises], bool] = lambda effect: True,
) -> State | None:
    """The standard deviation of what its defenses add, by name, in units of a gradient; None where nothing is added.

    Noise as it is published. Quantisation as uniform errors of its step: step/√12; where a tensor's coordinates share a
    norm as stochastic rounding, by the steps that show where they do: `quantised_std`, `published_std`. Rounding to the
    nearest errs otherwise.

    Args:
        target: what was shared, in those units; with or without the weight decay that is known.
        scale: of a change of weights; 1 for a gradient.
        signal: about the norm of what the noise was added to: a clip behind it scaled both down.
        of: the effects that count.
    """
    effects = [
        (place, effect)
        for place, effect in enumerate(observation.effects)
        if isinstance(effect, AddsNoise | Quantises) and of(effect)
    ]
    if not effects:
        return None
    whole = math.sqrt(math.fsum(float(tensor.square().sum()) for tensor in target.values()))
    count = sum(tensor.numel() for tensor in target.values())
    shared = _shared(observation)
    sent = math.fsum(float(one.square().sum()) for one in shared.values())
    sent /= max(1, sum(tensor.numel() for tensor in shared.values()))
    squares = {name: torch.zeros_like(tensor) for name, tensor in target.items()}

    def added(place: int, noise: AddsNoise) -> float:
        if noise.relative:
            return (noise.std / scale) ** 2 * sent / (1.0 + noise.std**2)
        square = (noise.std / _units(noise, observation, scale)) ** 2
        bound = _clip_behind(place, observation, whole, scale)
        return square * min(1.0, bound**2 / max(signal**2 + square * count, 1e-300))

    for place, effect in effects:
        if isinstance(effect, AddsNoise):
            more = added(place, effect)
            squares = {name: square + more for name, square in squares.items()}
            continue
        behind = [added(*one) for one in _added(observation) if one[0] > place and one[1].on == "update"]
        shows = observation.summed == 1 and not behind
        for name, tensor in target.items():
            if effect.per == "update":
                size = torch.as_tensor(whole, dtype=tensor.dtype, device=tensor.device)
                squares[name] += (effect.step * size).clamp(min=effect.least / abs(scale)).square() / 12.0
                continue
            own = (shared[name].abs() / abs(scale)).to(tensor)  # weight decay was never quantised
            if effect.per == "tensor":
                found = _of_buckets(own, effect) if shows else published_std(own, effect, math.fsum(behind))
                squares[name] += found.square()
            else:
                squares[name] += (effect.step * own).clamp(min=effect.least / abs(scale)).square() / 12.0
    return {name: square.sqrt() for name, square in squares.items()}


def _shared(observation: Observation) -> State:
    """Gradient or change of weights as it was shared, float64, by name."""
    update, start = observation.update, observation.global_state
    tensors = {name: tensor.double() for name, tensor in update.tensors.items() if tensor.is_floating_point()}
    if update.kind == "weights":
        tensors = {name: tensor - start[name].to(tensor) for name, tensor in tensors.items()}
    return tensors


def clipped_noise(observation: Observation, target: State, scale: float) -> float:
    """‖n‖² about, of the noise that counts in the norm of a clip behind it; 0 where none does."""
    whole = math.sqrt(math.fsum(float(tensor.square().sum()) for tensor in target.values()))
    count = sum(tensor.numel() for tensor in target.values())
    added = [(place, one) for place, one in _added(observation) if not one.relative]
    before = [one for place, one in added if math.isfinite(_clip_behind(place, observation, whole, scale))]
    return math.fsum(count * (one.std / _units(one, observation, scale)) ** 2 for one in before)


def std_before_clip(observation: Observation, scale: float, bound: float) -> tuple[float, float]:
    """Of the noise that counts in the norm of the clip that binds: the standard deviation of a gradient's coordinate.

    And of relative noise the norm, as a multiple of that of the gradient.

    Args:
        scale: of a change of weights; 1 for a gradient.
        bound: of that clip, in units of a gradient: noise between it and a looser one is in no norm that binds.
    """
    before = [
        one for place, one in _added(observation) if _limit_behind(place, observation, scale) <= bound * (1.0 + 1e-9)
    ]
    std = math.hypot(*(one.std / _units(one, observation, scale) for one in before if not one.relative))
    return std, math.sqrt(math.prod(1.0 + one.std**2 for one in before if one.relative) - 1.0)


def _added(observation: Observation) -> list[tuple[int, AddsNoise]]:
    """All noise, by its place among the effects: two of them may be equal."""
    return [(place, one) for place, one in enumerate(observation.effects) if isinstance(one, AddsNoise)]


def _clip_behind(place: int, observation: Observation, whole: float, scale: float) -> float:
    """The norm that a client's noisy update was scaled down to, in units of a gradient; infinite where it was not.

    Noise of local steps is before every clip of an update, in whatever order the defenses stand.
    """
    bound = _limit_behind(place, observation, scale)
    return bound if whole >= AT_BOUND * bound else math.inf


def _limit_behind(place: int, observation: Observation, scale: float) -> float:
    effects = observation.effects
    noise = effects[place]
    behind = effects if isinstance(noise, AddsNoise) and noise.on == "sum" else effects[place:]
    limits = [one.max_norm / abs(scale) for one in behind if isinstance(one, Clips) and one.per == "update"]
    return min(limits, default=math.inf) if observation.summed == 1 else math.inf


def noise_of_gradient(observation: Observation) -> State | None:
    """The same of the gradient that the update amounts to."""
    scale = 1.0 if observation.update.kind == "gradient" else observation.protocol.gradient_scale()
    return noise_of(observation, observation.gradient, scale)


def quantised_std(tensor: Float[Tensor, "..."], effect: Quantises) -> Float[Tensor, "..."]:
    """The error of stochastic rounding to steps of each bucket's own size: the smallest of its values but zero.

    In a bucket of few numbers that may be several steps: there the published one says how many.

    A coordinate at zero or one step is one of many small ones: a share p of them has gone up, which leaves p(1-p) of
    the step's square. Others lie anywhere between two steps, which leaves a sixth.
    """
    values = _buckets(tensor, effect.bucket)
    step = _step(values, effect)
    few = values < 1.5 * step.clamp(min=torch.finfo(values.dtype).tiny)
    number = few.sum(dim=1, keepdim=True)
    up = (few & (values > 0)).sum(dim=1, keepdim=True) / number.clamp(min=1)
    # Of a few all may have gone one way.
    up = up.clamp(1.0 / (number + 1.0), number / (number + 1.0)).where(number > 0, 0.0)
    variance = torch.where(few, up * (1.0 - up), 1.0 / 6.0) * step.square()
    return variance.sqrt().flatten()[: tensor.numel()].view_as(tensor)


def published_std(tensor: Float[Tensor, "..."], effect: Quantises, noise: float = 0.0) -> Float[Tensor, "..."]:
    """The same where no steps show, by the step that the defense publishes: a sixth of its square.

    In a mean of several updates, as large as if these had nothing in common.

    Args:
        noise: mean square of what was added to each number since.
    """
    values = _buckets(tensor, effect.bucket)
    std = (_published_step(values, effect, noise)[0] / math.sqrt(6.0)).expand_as(values)
    return std.flatten()[: tensor.numel()].view_as(tensor)


def _published_step(
    values: Float[Tensor, "buckets size"], effect: Quantises, noise: float = 0.0
) -> tuple[Float[Tensor, "buckets 1"], Float[Tensor, "buckets 1"]]:
    """Of each bucket, a multiple of the norm that it had; and how much its square has grown since by errors, about."""
    count = values.isfinite().sum(dim=1, keepdim=True)
    squares = values.nan_to_num().square().sum(dim=1, keepdim=True)
    kept = (1.0 - count * noise / squares.clamp(min=1e-300)).clamp(min=0.0)  # the noise's share is not the norm's
    if effect.norm == "max":  # is a whole number of steps, and stays one
        largest = values.nan_to_num().amax(dim=1, keepdim=True)
        return effect.step * largest * kept.sqrt(), torch.zeros_like(largest)
    growth = count * effect.step**2 / 6.0
    return effect.step * (squares * kept / (1.0 + growth)).sqrt(), growth


def _of_buckets(tensor: Float[Tensor, "..."], effect: Quantises) -> Float[Tensor, "..."]:
    """By the steps that show, where a bucket's values are whole multiples of one; else by those published."""
    values = _buckets(tensor, effect.bucket)
    multiples = (values / _step(values, effect)).nan_to_num(nan=0.0, posinf=0.0)
    off = (multiples - multiples.round()).abs() > torch.clamp(ROUNDED * multiples, min=OFF)
    whole = (~off).all(dim=1, keepdim=True).expand_as(values).flatten()[: tensor.numel()].view_as(tensor)
    return quantised_std(tensor, effect).where(whole, published_std(tensor, effect))


def _buckets(tensor: Float[Tensor, "..."], bucket: int | None) -> Float[Tensor, "buckets size"]:
    """Magnitudes; NaN behind the last."""
    size = min(bucket or tensor.numel(), tensor.numel())
    return F.pad(tensor.abs().flatten(), (0, -tensor.numel() % size), value=math.nan).view(-1, size)


def _step(values: Float[Tensor, "buckets size"], effect: Quantises) -> Float[Tensor, "buckets 1"]:
    """Of each bucket the least of its values but zero, or a part of it; zero where there is none."""
    least = values.nan_to_num(nan=math.inf).where(values > 0, math.inf).amin(dim=1, keepdim=True)
    least = least.where(least.isfinite(), 0.0)
    expected, growth = _published_step(values, effect)
    several = (least / expected).nan_to_num(nan=1.0, posinf=1.0).round().clamp(min=1.0)
    return least / several.where(growth < FEW, 1.0)


def is_even(observation: Observation) -> bool:
    """Whether defenses add noise, all of it of about one size within a tensor: rounding number by number is not."""
    effects = [effect for effect in observation.effects if isinstance(effect, AddsNoise | Quantises)]
    return bool(effects) and not any(isinstance(one, Quantises) and one.per == "coordinate" for one in effects)


def _units(noise: AddsNoise, observation: Observation, scale: float) -> float:
    """What divides noise on an update, or on the sum of a batch's gradients in each step.

    Of several clients' mean, whose noise is independent and whose numbers of images are taken to be equal.
    """
    alike = math.sqrt(observation.summed)
    if noise.on == "update":
        return abs(scale) * alike
    protocol, clients = observation.protocol, observation.summed
    size, held = max(1, protocol.batch_size // clients), observation.update.num_examples // clients
    left = held % size or size  # in the last step of a pass over the client's images
    last = max(1, -(-held // size))
    factors = protocol.step_factors() if protocol.optimizer == "sgd" else (1.0,) * max(1, protocol.steps)
    sizes = [left if step % last == last - 1 else size for step in range(len(factors))]
    moved = math.hypot(*(factor / images for factor, images in zip(factors, sizes, strict=True)))
    return abs(sum(factors)) * alike / moved if moved else math.inf
