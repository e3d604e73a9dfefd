"""How far each shared number may be from what the client computed, as far as the server knows its defenses."""

import math

import torch

from attacks.optimization.matching.local_steps import update_scale
from fedsim.effects import AddsNoise, Clips, Quantises
from fedsim.observation import Observation
from fedsim.update import State


def rounding_of(observation: Observation, target: State, scale: float) -> State:
    """The standard deviation that the client's own precision leaves, by name, in units of a gradient.

    Args:
        target: what was shared, in those units.
        scale: of a change of weights; 1 for a gradient.
    """
    eps = observation.eps
    found = {name: torch.full_like(t, eps * float(t.norm()) / math.sqrt(t.numel())) for name, t in target.items()}
    if observation.update.kind == "gradient":
        return found
    state = observation.global_state
    return {n: torch.hypot(own, eps * state[n].to(own).abs() / abs(scale)) for n, own in found.items()}


def noise_of(observation: Observation, target: State, scale: float) -> State | None:
    """The standard deviation of what its defenses add, by name, in units of a gradient; None where nothing is added.

    Noise as it is published. Quantisation as uniform errors of its step: step/√12.
    """
    effects = [effect for effect in observation.effects if isinstance(effect, AddsNoise | Quantises)]
    if not effects:
        return None
    whole = math.sqrt(math.fsum(float(tensor.square().sum()) for tensor in target.values()))
    count = sum(tensor.numel() for tensor in target.values())
    squares = {name: torch.zeros_like(tensor) for name, tensor in target.items()}
    for effect in effects:
        for name, tensor in target.items():
            if isinstance(effect, AddsNoise) and effect.relative:
                squares[name] += (effect.std * whole) ** 2 / ((1.0 + effect.std**2) * count)
            elif isinstance(effect, AddsNoise):
                squares[name] += (effect.std / _units(observation, scale)) ** 2
            else:
                sizes = {"coordinate": tensor.abs(), "update": whole, "tensor": tensor.norm()}
                size = torch.as_tensor(sizes[effect.per], dtype=tensor.dtype, device=tensor.device)
                squares[name] += (effect.step * size).square() / 12.0
    return {name: square.sqrt() for name, square in squares.items()}


def _units(observation: Observation, scale: float) -> float:
    """What divides noise on an update, or on the sum of a batch's clipped gradients."""
    by_example = any(isinstance(effect, Clips) and effect.per.startswith("example") for effect in observation.effects)
    return observation.protocol.batch_size * math.sqrt(observation.protocol.steps) if by_example else abs(scale)


def unit_scale(observation: Observation, local: str) -> float:
    """What a shared change is divided by to be a gradient.

    Args:
        local: how local steps are taken, `auto` resolved.
    """
    if observation.update.kind == "gradient":
        return 1.0
    protocol = observation.protocol
    return protocol.gradient_scale() if local == "gradient" and protocol.optimizer == "sgd" else update_scale(protocol)
