"""Defenses that perturb what is shared.

Both act on a gradient or a delta. A client that shares whole weights forms them after its defenses, from the
transformed delta: noise or clipping of the weights themselves would act on what the server knows already. Neither acts
on buffers: values of running statistics have another scale than gradients, and a variance with noise may be negative.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from logging import getLogger

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from defenses.base import Defense, Plan
from defenses.settings import choice, number
from fedsim.effects import AddsNoise, Clips, Effect
from fedsim.errors import ConfigError
from fedsim.update import State, Update

logger = getLogger(__name__)

DISTRIBUTIONS = ("gaussian", "laplace")


class GradientNoise(Defense):
    """Noise on the gradient, or the change, of every shared parameter. No privacy accounting.

    Args:
        std: standard deviation of a coordinate (Laplace's scale is std / √2).
        relative_norm: instead, the norm of all noise together as a multiple of the norm of all shared tensors
            together (root mean square): the same standard deviation in every coordinate of every tensor.
        distribution: `gaussian` or `laplace`.
    """

    def __init__(self, std: float = 0.0, relative_norm: float | None = None, distribution: str = "gaussian") -> None:
        self.std = number("defense.gradient_noise.std", std, "0 or more", lambda v: 0.0 <= v < math.inf)
        self.relative_norm = relative_norm
        if relative_norm is not None:
            key, expected = "defense.gradient_noise.relative_norm", "0 or more, or null"
            self.relative_norm = number(key, relative_norm, expected, lambda v: 0.0 <= v < math.inf)
            if self.std != 0.0:
                raise ConfigError("defense.gradient_noise.std", std, "0 beside relative_norm: either sets the noise")
        self.distribution = choice("defense.gradient_noise.distribution", distribution, DISTRIBUTIONS)

    @property
    def repeatable(self) -> bool:
        return self.std == 0.0 and not self.relative_norm

    def effects(self) -> tuple[Effect, ...]:
        if self.repeatable:
            return ()
        size = self.std if self.relative_norm is None else self.relative_norm
        return (AddsNoise(size, self.relative_norm is not None, self.distribution),)

    def check(self, plan: Plan) -> None:
        warn_of_statistics(plan, "gradient_noise")

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        require_change(update, "gradient_noise")
        std = self.std
        if self.relative_norm is not None:
            coordinates = sum(tensor.numel() for tensor in update.tensors.values() if tensor.is_floating_point())
            std = self.relative_norm * update_norm(update) / math.sqrt(max(1, coordinates))
        if std == 0.0:
            return update
        tensors = dict(update.tensors)
        for name in sorted(tensors):  # an order of its own: the same noise however the tensors are listed
            tensor = tensors[name]
            if tensor.is_floating_point():
                tensors[name] = tensor + std * unit_noise(tensor, self.distribution, rng)
        return replace(update, tensors=tensors)


class GradientClip(Defense):
    """Scale an update down to an L2 norm of at most `max_norm`, all floating-point tensors together; no buffers."""

    repeatable = True

    def __init__(self, max_norm: float = math.inf) -> None:
        self.max_norm = number("defense.gradient_clip.max_norm", max_norm, "more than 0", lambda v: v > 0.0)

    def effects(self) -> tuple[Effect, ...]:
        return () if self.max_norm == math.inf else (Clips(self.max_norm, "update"),)

    def check(self, plan: Plan) -> None:
        warn_of_statistics(plan, "gradient_clip")

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        require_change(update, "gradient_clip")
        return clip(update, self.max_norm)


def clip(update: Update, max_norm: float) -> Update:
    """`update` itself where it is no longer than `max_norm`, else scaled down to it."""
    norm = update_norm(update)
    if norm <= max_norm:
        return update
    factor = max_norm / norm
    tensors = {n: t * factor if t.is_floating_point() else t for n, t in update.tensors.items()}
    return replace(update, tensors=tensors)


def unit_noise(like: Tensor, distribution: str, rng: torch.Generator) -> Tensor:
    """Independent draws of standard deviation 1, in the shape, type and place of `like`."""
    if distribution == "gaussian":
        return torch.randn(like.shape, generator=rng, dtype=like.dtype).to(like.device)
    # Two exponentials' difference is Laplace's distribution of scale 1, whose variance is 2.
    exponentials: Sequence[Tensor] = [torch.empty(like.shape).exponential_(generator=rng) for _ in range(2)]
    return ((exponentials[0] - exponentials[1]) / math.sqrt(2.0)).to(like)


def widened(tensors: State) -> State:
    """Floating-point tensors in float32 at least.

    In half precision what is clipped may exceed its bound, and noise has few values.
    """
    wide = {n: torch.promote_types(t.dtype, torch.float32) for n, t in tensors.items() if t.is_floating_point()}
    return {name: tensor.to(wide.get(name, tensor.dtype)) for name, tensor in tensors.items()}


def update_norm(update: Update) -> float:
    """The L2 norm of all floating-point tensors together, summed in float64."""
    squares = [float(t.double().square().sum()) for t in update.tensors.values() if t.is_floating_point()]
    return math.sqrt(math.fsum(squares))


def tracked_statistics(plan: Plan) -> str | None:
    """The first layer whose running statistics training moves, and clients share beside their update."""
    if not plan.client["training_mode"]:
        return None
    layers = plan.model.named_modules()
    return next((n for n, layer in layers if isinstance(layer, _NormBase) and layer.track_running_stats), None)


def warn_of_statistics(plan: Plan, defense: str) -> None:
    """Once for each defense that acts on gradients alone: they are not all that clients share."""
    if (layer := tracked_statistics(plan)) is not None:
        _warn_of_statistics(defense, layer)


@cache
def _warn_of_statistics(defense: str, layer: str) -> None:
    logger.warning(
        "%s leaves running statistics as they are: those of %s give the batch's mean and variance away "
        "(client.training_mode=false, or withhold them)",
        defense,
        layer,
    )


def require_change(update: Update, defense: str) -> None:
    """Raises ConfigError for whole weights."""
    if update.kind == "weights":
        raise ConfigError("defense", defense, "a gradient or a delta; whole weights are formed after the defenses")
