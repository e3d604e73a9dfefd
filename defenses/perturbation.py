"""Defenses that perturb what is shared.

Both act on a gradient or a delta. A client that shares whole weights forms them after its defenses, from the
transformed delta: noise or clipping of the weights themselves would act on what the server knows already.
"""

import math
from dataclasses import replace

import torch

from defenses.base import Defense
from fedsim.errors import ConfigError
from fedsim.update import Update


class GradientNoise(Defense):
    """Gaussian noise on every shared floating-point tensor. No privacy accounting.

    Args:
        std: standard deviation of a coordinate.
        relative_norm: instead, the norm of all noise together as a multiple of the norm of all shared tensors
            together (root mean square): the same standard deviation in every coordinate of every tensor.
    """

    def __init__(self, std: float = 0.0, relative_norm: float | None = None) -> None:
        _require("defense.gradient_noise.std", std, 0.0 <= std < math.inf, "0 or more")
        if relative_norm is not None:
            valid = 0.0 <= relative_norm < math.inf
            _require("defense.gradient_noise.relative_norm", relative_norm, valid, "0 or more, or null")
            _require("defense.gradient_noise.std", std, std == 0.0, "0 beside relative_norm: either sets the noise")
        self.std = std
        self.relative_norm = relative_norm

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        _require_change(update, "gradient_noise")
        std = self.std
        if self.relative_norm is not None:
            coordinates = sum(tensor.numel() for tensor in update.tensors.values() if tensor.is_floating_point())
            std = self.relative_norm * _norm(update) / math.sqrt(max(1, coordinates))
        if std == 0.0:
            return update
        tensors = dict(update.tensors)
        for name in sorted(tensors):  # an order of its own: the same noise however the tensors are listed
            tensor = tensors[name]
            if tensor.is_floating_point():
                noise = torch.randn(tensor.shape, generator=rng, dtype=tensor.dtype).to(tensor.device)
                tensors[name] = tensor + std * noise
        return replace(update, tensors=tensors)


class GradientClip(Defense):
    """Scale an update down to an L2 norm of at most `max_norm`, all floating-point tensors taken together."""

    def __init__(self, max_norm: float = math.inf) -> None:
        _require("defense.gradient_clip.max_norm", max_norm, max_norm > 0.0, "more than 0")
        self.max_norm = max_norm

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        _require_change(update, "gradient_clip")
        norm = _norm(update)
        if norm <= self.max_norm:
            return update
        factor = self.max_norm / norm
        tensors = {n: t * factor if t.is_floating_point() else t for n, t in update.tensors.items()}
        return replace(update, tensors=tensors)


def _norm(update: Update) -> float:
    """The L2 norm of all floating-point tensors together, summed in float64."""
    squares = [float(t.double().square().sum()) for t in update.tensors.values() if t.is_floating_point()]
    return math.sqrt(math.fsum(squares))


def _require(key: str, value: float, valid: bool, expected: str) -> None:
    if not valid:
        raise ConfigError(key, value, expected)


def _require_change(update: Update, defense: str) -> None:
    if update.kind == "weights":
        raise ConfigError("defense", defense, "a gradient or a delta; whole weights are formed after the defenses")
