"""Activations are distributed as BatchNorm saw them in training."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from attacks.optimization.priors.base import TINY, Prior, PriorTerm
from attacks.optimization.priors.recorded_inputs import recorded_inputs
from attacks.victim import leave_out_noise
from fedsim.errors import ConfigError, NotApplicable, nearest, one_of
from fedsim.models import ModelSpec, normalisation
from fedsim.models.architecture import DTYPES
from fedsim.observation import Observation

Statistics = Mapping[str, tuple[Tensor, Tensor]]
"""Mean and biased variance per channel, by the name of the BatchNorm layer."""

SOURCES = ("victim", "network")


class BatchNormStatistics(Prior):
    """The distance of a candidate's activation statistics from those of a trained network.

    Args:
        source: `victim`: the observed model, against the running statistics that the server had sent (Yin et al.
            2021, R_BN). `network`: a separate convolutional network (Hatamizadeh et al. 2022, GradViT: a
            self-supervised ResNet-50), for victims without BatchNorm.
        network: settings of that network as of a model: `name`, and `pretrained` or `checkpoint`.
        resize: side in pixels to which pictures are scaled for the network; None: as they are.
    """

    def __init__(
        self,
        weight: float | int,
        source: str = "victim",
        network: Mapping[str, Any] | None = None,
        resize: int | None = None,
        start: float | int = 0.0,
        end: float | int = 1.0,
    ) -> None:
        super().__init__(weight, start, end)
        one_of("prior.source", source, SOURCES)
        if (network is None) != (source == "victim"):
            raise ConfigError("prior.network", network, "a network with source=network, none with source=victim")
        if resize is not None and (resize < 1 or source == "victim"):
            raise ConfigError("prior.resize", resize, "a positive number of pixels, with source=network")
        self.network = None if network is None else _check_network(network)
        self.resize = resize

    def prepare(self, observation: Observation, labels: Tensor | None, device: torch.device) -> PriorTerm:
        """Build the network and take its running statistics as the target.

        Raises:
            NotApplicable: the victim has no trained BatchNorm statistics; the network reads other channels.
            ConfigError: the configured network has no trained BatchNorm statistics.
        """
        if self.network is None:
            return self._of_victim(observation, device)
        return self._of_network(self.network, observation, device)

    def _of_victim(self, observation: Observation, device: torch.device) -> PriorTerm:
        model = _frozen(observation.build_model(), device)
        leave_out_noise(model)
        statistics = running_statistics(model)
        name = observation.architecture.spec.name
        if not statistics:
            raise NotApplicable(
                f"{name} has no BatchNorm statistics: give an image-prior network, or drop the prior "
                "(priors.batch_norm=null)"
            )
        if untrained(statistics):
            raise NotApplicable(f"the BatchNorm statistics of {name} are untrained: they say nothing about pictures")
        return lambda images: batch_norm_distance(model, images, statistics)

    def _of_network(self, spec: ModelSpec, observation: Observation, device: torch.device) -> PriorTerm:
        model = spec.build(seed=0)
        dtype = DTYPES[observation.architecture.spec.dtype]
        mean, std = normalisation(model)
        model = _frozen(model, device).to(dtype)
        statistics = running_statistics(model)
        if not statistics or untrained(statistics):
            raise ConfigError("prior.network", spec.name, "a network with trained BatchNorm statistics")
        if len(mean) != observation.image_shape[0]:
            raise NotApplicable(f"{spec.name} reads {len(mean)} channels, not {observation.image_shape[0]}")
        theirs, ours = _column(std, dtype, device), _column(observation.std, dtype, device)
        scale = ours / theirs
        offset = (_column(observation.mean, dtype, device) - _column(mean, dtype, device)) / theirs

        def term(images: Tensor) -> Tensor:
            seen = images.to(dtype) * scale + offset
            if self.resize is not None:
                seen = F.interpolate(seen, size=(self.resize, self.resize), mode="bilinear", antialias=False)
            return batch_norm_distance(model, seen, statistics)

        return term


def batch_norm_distance(
    model: nn.Module,
    images: Float[Tensor, "batch channels height width"],
    statistics: Statistics | None = None,
) -> Float[Tensor, ""]:
    """Σ_l ‖μ_l(x) - μ_l‖₂ + ‖σ²_l(x) - σ²_l‖₂ over BatchNorm layers (Yin et al. 2021, R_BN).

    μ_l(x) and σ²_l(x) are mean and biased variance, per channel, of what goes into layer l. The model must be in
    eval mode: activations are passed on normalised by the running statistics.

    Args:
        model: normalised pictures in; its parameters and buffers are left alone.
        statistics: what to compare with; None: the model's running statistics. Layers that are not in it count 0.
    """
    targets = running_statistics(model) if statistics is None else statistics
    layers = {name: layer for name, layer in batch_norm_layers(model).items() if name in targets}
    if not layers:
        raise ValueError("no BatchNorm layer has statistics to compare with")
    with recorded_inputs(layers) as recorded:
        model(images)
    terms = []
    for name, activations in recorded:
        over = [dim for dim in range(activations.ndim) if dim != 1]
        variance, mean = torch.var_mean(activations, dim=over, correction=0)
        terms.append(_norm(mean - targets[name][0]) + _norm(variance - targets[name][1]))
    return torch.stack(terms).sum()


def batch_norm_layers(model: nn.Module) -> dict[str, nn.Module]:
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)}


def running_statistics(model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """Running mean and variance of the BatchNorm layers that keep them."""
    result = {}
    for name, layer in batch_norm_layers(model).items():
        mean, variance = getattr(layer, "running_mean", None), getattr(layer, "running_var", None)
        if mean is not None and variance is not None:
            result[name] = (mean.detach(), variance.detach())
    return result


def untrained(statistics: Statistics) -> bool:
    """Still mean 0 and variance 1 everywhere, as initialised."""
    return all(bool((mean == 0).all()) and bool((variance == 1).all()) for mean, variance in statistics.values())


def _check_network(network: Mapping[str, Any]) -> ModelSpec:
    """Whoever gives no number of classes gets ImageNet's: the head is not used, but must fit a checkpoint."""
    known = ModelSpec.__dataclass_fields__
    for key in network:
        if key not in known:
            raise ConfigError(
                f"prior.network.{key}", network[key], fault=f"no such setting of a model.{nearest(key, known)}"
            )
    if "name" not in network:
        raise ConfigError("prior.network", dict(network), "a mapping with a name")
    spec = ModelSpec.from_dict({"num_classes": 1000, **network})
    try:
        spec.check()
    except ConfigError as error:
        raise error.under(f"prior.network.{error.key.split('.', 1)[-1]}") from error
    if not spec.pretrained and spec.checkpoint is None:
        raise ConfigError(
            "prior.network.checkpoint",
            "null",
            f"a file of trained weights of {spec.name}, or pretrained=true: an untrained network says nothing",
        )
    return spec


def _frozen(model: nn.Module, device: torch.device) -> nn.Module:
    return model.to(device).eval().requires_grad_(False)


def _column(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device).view(1, -1, 1, 1)


def _norm(vector: Float[Tensor, "channels"]) -> Float[Tensor, ""]:
    return (vector.square().sum() + TINY).sqrt()
