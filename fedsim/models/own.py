"""A module that timm does not know, as a recipe."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedsim.errors import ConfigError
from fedsim.models.architecture import Architecture, ModelSpec, input_sides, normalisation
from fedsim.models.buffers import Buffers
from fedsim.models.random_drops import random_drops
from fedsim.models.stated import check_stated


@dataclass(frozen=True)
class OwnArchitecture(Architecture):
    """Builds copies of a module in hand, with the defenses' changes. It lives in this process alone."""

    module: nn.Module | None = None

    def build(self, keep: bool = False) -> nn.Module:
        if self.module is None:
            expected = "the module itself, fedsim.Observation.load(folder, model=…): no name tells how to build it"
            raise ConfigError("model", self.spec.name, expected)
        return self._wrapped(copy.deepcopy(self.module))

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of what the module reads."""
        known = getattr(self.module, "pretrained_cfg", None) or {}
        channels, height, width = known["input_size"]
        return channels, height, width


def own_architecture(
    model: nn.Module,
    image_shape: Sequence[int] | None = None,
    num_classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    roles: Mapping[str, str] | None = None,
) -> OwnArchitecture:
    """The recipe of `model`, which stays as it is.

    A copy of the module keeps what it reads where timm's models keep it, in `pretrained_cfg`.

    Args:
        image_shape: (channels, height, width); None: as the model says.
        num_classes: None asks the model, by a forward pass.
        mean, std: per channel, of the normalisation of images in [0, 1]; None: those that `timm.create_model` gave the
            model, else none.
        roles: names of parameters by their role, of `STATED`; None: where timm's ViTs have them.

    Raises:
        ConfigError: the module cannot be copied or does not read such images, or what it gives is no [1,classes].
    """
    try:
        module = copy.deepcopy(model).cpu()  # where every recipe builds; whoever computes elsewhere moves it
    except Exception as error:
        raise ConfigError("model", type(model).__name__, f"a module that copy.deepcopy can copy ({error})") from error
    known = getattr(module, "pretrained_cfg", None) or {}
    shape = tuple(image_shape) if image_shape is not None else stated_shape(module)
    if shape is None:
        expected = "(channels, height, width) of the images that the model reads: only timm's models say it themselves"
        raise ConfigError("image_shape", None, expected)
    usual = normalisation(module) if known else ((0.0,), (1.0,))
    values = {"mean": _each("mean", mean, usual[0], shape[0]), "std": _each("std", std, usual[1], shape[0])}
    about: dict[str, Any] = {**known, **values, "input_size": shape}
    module.pretrained_cfg = about  # type: ignore[assignment]
    classes, classifier = _outputs(module, shape)
    if classes < 2:
        expected = "one of 2 outputs at least: over one class no loss has a gradient"
        raise ConfigError("model", type(model).__name__, expected)
    about["outputs"] = classes
    if classifier is not None:
        about["classifier"] = classifier
    if roles is not None:
        about["roles"] = roles
        about["roles"] = check_stated(module, roles, shape[0])
    if num_classes is not None and num_classes != classes:
        raise ConfigError("num_classes", num_classes, f"{classes}: so many outputs has the model")
    name = str(known.get("architecture") or type(model).__name__)
    return OwnArchitecture(ModelSpec(name, classes), module=module)


def training_mode_of(model: nn.Module) -> bool:
    """Whether the model is in training mode: clients put all of it into one.

    Raises:
        ConfigError: BatchNorm or dropout in one part of it is in another mode than in another.
    """
    modes = _modes(model)
    other = next((name for name, mode in modes.items() if mode != model.training), None)
    if other is not None:
        how = "training" if modes[other] else "evaluation"
        expected = f"in one mode as a whole, model.train() or model.eval(): {other} is in {how} mode and others are not"
        raise ConfigError("model", type(model).__name__, expected)
    return model.training


def check_mode(model: nn.Module, training_mode: bool) -> None:
    """A model whose mode changes what it computes, and that is in evaluation mode, is not of a client in the other.

    Raises:
        ConfigError: of a protocol, whose default is training mode.
    """
    modes = _modes(model)
    if training_mode and modes and not any(modes.values()):
        expected = f"False, as {next(iter(modes))} of the model is in evaluation mode; or call model.train() before"
        raise ConfigError("protocol.training_mode", training_mode, expected)


def _modes(model: nn.Module) -> dict[str, bool]:
    """Of the parts that compute something else in training mode, BatchNorm and dropout."""
    drops = set(random_drops(model))

    def counts(name: str, part: nn.Module) -> bool:
        return name in drops or (isinstance(part, _BatchNorm) and part.running_mean is not None)

    return {name: one.training for name, one in model.named_modules() if counts(name, one)}


def stated_shape(module: nn.Module) -> tuple[int, ...] | None:
    """(channels, height, width) of what it reads, where `pretrained_cfg` or a ViT's patch embedding says so."""
    size = getattr(getattr(module, "patch_embed", None), "img_size", None)
    if not getattr(module, "pretrained_cfg", None) and not isinstance(size, tuple):
        return None
    return _channels(module), *input_sides(module)


def _channels(module: nn.Module) -> int:
    """Of the first layer, where timm's models name it."""
    about = getattr(module, "pretrained_cfg", None) or {}
    try:
        first = module.get_submodule(str(about.get("first_conv") or "patch_embed.proj"))
    except AttributeError:
        return 3
    return first.in_channels if isinstance(first, nn.Conv2d) else 3


def _each(key: str, given: Any, usual: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """A number for each channel; one that is usual for all stands for any number of them, as for timm."""
    try:
        value = usual if given is None else tuple(map(float, given))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(key, given, f"one number for each of {channels} channels") from error
    if given is None and len(set(usual)) == 1:
        value = usual[:1] * channels
    if not all(map(math.isfinite, value)) or (key == "std" and given is not None and min(value, default=1.0) <= 0):
        raise ConfigError(key, value, "finite numbers" + (" above 0" if key == "std" else ""))
    if len(value) != channels:
        whose = "" if given is not None else f", given by {key}=: these are the model's own"
        raise ConfigError(key, value, f"one number for each of {channels} channels{whose}")
    return value


def _outputs(module: nn.Module, shape: tuple[int, ...]) -> tuple[int, str | None]:
    """The number of outputs, and the linear layer whose output they are; modes and buffers stay as they are."""
    like = next((p for p in module.parameters() if p.is_floating_point()), None)
    if like is None:
        raise ConfigError("model", type(module).__name__, "a module with real parameters")
    modes = {one: one.training for one in module.modules()}
    buffers = Buffers(module)
    made: list[tuple[str, torch.Tensor, torch.Tensor]] = []
    linear = {name: one for name, one in module.named_modules() if isinstance(one, nn.Linear)}
    hooks = [one.register_forward_hook(partial(_note, made, name)) for name, one in linear.items()]
    try:
        with torch.no_grad():
            logits = module.eval()(torch.zeros(1, *shape, dtype=like.dtype, device=like.device))
    except (RuntimeError, ValueError, TypeError, AssertionError, IndexError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError("image_shape", shape, f"what {type(module).__name__} reads ({reason})") from error
    finally:
        for one, mode in modes.items():
            one.training = mode
        buffers.restore()
        for hook in hooks:
            hook.remove()
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != 1:
        given = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise ConfigError("model", type(module).__name__, f"logits of shape [images, classes], not {given}")
    return int(logits.shape[1]), _head(module, made, logits)


def _head(module: nn.Module, made: list[tuple[str, torch.Tensor, torch.Tensor]], logits: torch.Tensor) -> str | None:
    """The linear layer whose output the logits are as they stand: used once, its parameters nobody else's."""
    name = next((name for name, output, values in made if output is logits and torch.equal(values, logits)), None)
    if name is None or sum(used == name for used, _, _ in made) != 1:
        return None
    every = [parameter for _, parameter in module.named_parameters(remove_duplicate=False)]
    own = list(dict(module.named_modules())[name].parameters())
    return name if all(sum(one is parameter for one in every) == 1 for parameter in own) else None


def _note(
    made: list[tuple[str, torch.Tensor, torch.Tensor]],
    name: str,
    layer: nn.Module,
    inputs: object,
    output: torch.Tensor,
) -> None:
    made.append((name, output, output.clone()))
