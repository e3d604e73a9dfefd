"""The gradient that a first step of Adam tells: its ε and the rounding of weights leave the size of small entries."""

import math
from dataclasses import dataclass

import torch

from attacks.optimization.matching.local_steps import weight_change, weight_eps
from fedsim.effects import AddsNoise, Clips, Effect, Quantises, SharesSigns, Sparsifies
from fedsim.errors import NotApplicable
from fedsim.observation import Observation
from fedsim.update import State

ADAM = ("adam", "adamw")
MIN_RESOLVED = 0.01
"""Share of entries whose size must be legible; below it the step is signs alone."""
ROUNDINGS = 5.0
"""By so many of its errors an entry must be off the full step, that its size counts as legible."""
ARITHMETIC = 4.0
"""Roundings of the optimiser's own arithmetic in one step."""


@dataclass(frozen=True)
class AdamGradient:
    """A gradient read off Adam's first step.

    Attributes:
        error: about the standard deviation of each entry; infinite where the step tells its sign alone.
    """

    gradient: State
    error: State

    @property
    def share(self) -> float:
        """Of the entries, how many tell their size, zeros left out."""
        entries = sum(tensor.numel() for tensor in self.error.values())
        told = sum(int((self.error[n].isfinite() & (g != 0)).sum()) for n, g in self.gradient.items())
        return told / max(1, entries)


def invert_adam_first_step(delta: State, lr: float, eps: float, rounding: State) -> AdamGradient:
    """|g| = ε r/(1 - r) with r = |Δ|/lr, the sign being that of -Δ; elementwise.

    The first step is lr·g/(|g| + ε) whatever the betas. Entries with |g| ≫ ε have r = 1 up to rounding: the delta says
    their sign only. They are given the least gradient that would round so.

    Args:
        rounding: standard deviation of r, by entry.
    """
    gradient, error = {}, {}
    for name, tensor in delta.items():
        ratio = (tensor.double().abs() / lr).clamp(max=1.0)
        rest = (1.0 - ratio).clamp(min=rounding[name])
        gradient[name] = -tensor.double().sign() * eps * ratio / rest
        legible = 1.0 - ratio > ROUNDINGS * rounding[name]
        error[name] = torch.where(legible, rounding[name] * eps / rest.square(), torch.inf)
    return AdamGradient(gradient, error)


def read_adam(observation: Observation) -> AdamGradient:
    """What one shared step of Adam or AdamW was taken along, weight decay taken off.

    Raises:
        NotApplicable: several steps, a defense that hides the step's size, or hardly an entry that tells its own.
    """
    protocol, state = observation.protocol, observation.global_state
    name, lr = protocol.optimizer, protocol.lrs[0]
    for effect in observation.effects:
        if how := _hides_size(effect):
            raise NotApplicable(f"a {how} step of {name}: its size, which tells the gradient, is lost")
    if protocol.steps != 1:
        raise NotApplicable(f"{protocol.steps} steps of {name}: local_updates=unroll simulates them")
    if lr <= 0.0:
        raise NotApplicable("the learning rate was zero in every local step: the delta holds nothing")
    change = weight_change(observation)
    pruned = {n: c == 0 for n, c in change.items()} if observation.effect(Sparsifies) is not None else {}
    if name == "adamw" and protocol.weight_decay:
        change = {n: c + lr * protocol.decay_of(n) * state[n].double() for n, c in change.items()}
    found = invert_adam_first_step(change, lr, protocol.eps, _rounding(observation, change, lr))
    if name == "adam" and protocol.weight_decay:
        coupled = {n: g - protocol.decay_of(n) * state[n].to(g) for n, g in found.gradient.items()}
        found = AdamGradient(coupled, found.error)
    if pruned:  # a zero there is none that the step tells
        found = AdamGradient(
            {n: g.masked_fill(pruned[n], 0.0) for n, g in found.gradient.items()},
            {n: e.masked_fill(pruned[n], torch.inf) for n, e in found.error.items()},
        )
    if found.share < MIN_RESOLVED:
        raise NotApplicable(
            f"the first step of {name} at lr {lr:g} and eps {protocol.eps:g} leaves "
            f"{found.share:.2%} of the gradient legible: it is its sign"
        )
    return found


def _hides_size(effect: Effect) -> str:
    """How a defense changes what a step of Adam was, rather than the gradient along which it is taken."""
    if isinstance(effect, Clips):
        return "clipped" if effect.per == "update" and math.isfinite(effect.max_norm) else ""
    if isinstance(effect, AddsNoise):
        return "noisy" if effect.on == "update" else ""
    return "rounded" if isinstance(effect, Quantises | SharesSigns) else ""


def _rounding(observation: Observation, change: State, lr: float) -> State:
    """Of Δ/lr: weights are rounded to themselves, before and after, the step to its own size."""
    found = {}
    for name, tensor in change.items():
        eps = float(torch.finfo(observation.update.tensors[name].dtype).eps)
        weight = weight_eps(observation, name) * observation.global_state[name].to(tensor).abs()
        found[name] = eps * ARITHMETIC + 0.5 * weight / lr
    return found
