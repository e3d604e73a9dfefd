"""How far defenses move each shared number, as far as they say so."""

import math

import torch

from fedsim.effects import AddsNoise, Quantises
from fedsim.observation import Observation
from fedsim.update import State


def noise_of(observation: Observation, target: State, scale: float) -> State | None:
    """The standard deviation of what its defenses add, by name, in units of a gradient; None where nothing is added.

    Noise as it is published. Quantisation as uniform errors of its step: step/√12.

    Args:
        target: what was shared, in those units.
        scale: of a change of weights; 1 for a gradient.
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
                squares[name] += (effect.std / _units(effect, observation, scale)) ** 2
            else:
                sizes = {"coordinate": tensor.abs(), "update": whole, "tensor": tensor.norm()}
                size = torch.as_tensor(sizes[effect.per], dtype=tensor.dtype, device=tensor.device)
                squares[name] += (effect.step * size).square() / 12.0
    return {name: square.sqrt() for name, square in squares.items()}


def noise_of_gradient(observation: Observation) -> State | None:
    """The same of the gradient that the update amounts to."""
    scale = 1.0 if observation.update.kind == "gradient" else observation.protocol.gradient_scale()
    return noise_of(observation, observation.gradient, scale)


def is_even(observation: Observation) -> bool:
    """Whether defenses add noise, all of it of about one size within a tensor: rounding number by number is not."""
    effects = [effect for effect in observation.effects if isinstance(effect, AddsNoise | Quantises)]
    return bool(effects) and not any(isinstance(one, Quantises) and one.per == "coordinate" for one in effects)


def _units(noise: AddsNoise, observation: Observation, scale: float) -> float:
    """What divides noise on an update, or on the sum of a batch's gradients in each step."""
    protocol = observation.protocol
    return protocol.batch_size * math.sqrt(protocol.steps) if noise.on == "sum" else abs(scale)
