"""Whether the layer whose equations are solved reads the image itself, or what the model or it makes of the image."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fedsim.determinism import seeded_globals, torch_generator
from fedsim.errors import NotApplicable
from fedsim.observation import Observation
from fedsim.update import State

ROUNDINGS = 8.0
"""Of the client's precision, relative to the largest number, up to which what is read counts as the image."""

CHANGES = (1e-6, 1e-1)
"""Least and largest change of a pixel near the result: finer than float16 rounds, coarser than four bits do."""


def require_image(observation: Observation, images: Float[Tensor, "batch c h w"], layer: str, *further: str) -> None:
    """Refuse where the layer reads anything but the image that the model is given, or makes anything else of it.

    Solved is for what the layer reads. Where the model first makes something else of the image, and the same once more
    of that (greys it, clamps, masks or quantises it), the result goes through the client's computation as the image
    does. A layer of a class of its own may do so itself: what it gives, and its gradients, must be those of
    `F.conv2d` or `F.linear` of what it was given and its own weight and bias. Tested in the client's precision and
    mode, in as large a batch as the client's: on the result itself, near it, and on random images in [0, 1], some of
    zeros and ones alone. Every call of the layer counts near the result, where the whole model runs; elsewhere it stops
    at the first.

    Args:
        images: the result, in [0, 1].
        layer: the module's name.
        further: linear layers whose equations are solved too, of whatever they are given; those that are called.

    Raises:
        NotApplicable: it reads something else, is not linear, or is not called.
    """
    with seeded_globals(0, "input"):
        model = observation.build_model().cpu()
        like = next(model.parameters())
        for what, probe in _probes(images.detach().cpu()):
            given = observation.from_unit_range(probe.to(like))
            near = what == NEAR
            calls = _calls(model, (layer, *further) if near else (layer,), given, once=not near)
            if not calls[layer]:
                raise NotApplicable(f"{layer} is not called: what it reads of an image cannot be tested")
            off = max(_off(call.read, given) for call in calls[layer])
            if not off <= ROUNDINGS * torch.finfo(given.dtype).eps:
                raise NotApplicable(
                    f"the model changes its input before {layer} reads it ({_by(off)}, {what}): "
                    "other images may give the same update"
                )
            for name, made in calls.items():
                off = max((_not_linear(observation.global_state, model, name, call) for call in made), default=0.0)
                if not off <= ROUNDINGS * torch.finfo(given.dtype).eps:
                    raise NotApplicable(
                        f"{name} is no linear map of what it reads, by its weight and bias ({_by(off)}, {what}): "
                        "other images may give the same update"
                    )


def _by(off: float) -> str:
    return f"by {off:.1g} of its largest number" if math.isfinite(off) else "in shape"


NEAR = "near the result"


def _probes(images: Float[Tensor, "batch c h w"]) -> Iterator[tuple[str, Float[Tensor, "batch c h w"]]]:
    """Images in [0, 1] in the result's own precision, and what they are."""
    rng = torch_generator(0, "input")
    least, largest = (math.log10(one) for one in CHANGES)
    size = 10.0 ** (least + (largest - least) * torch.rand(images.shape, generator=rng, dtype=images.dtype))
    sign = torch.randint(0, 2, images.shape, generator=rng) * 2 - 1
    yield "at a random image", torch.rand(images.shape, generator=rng, dtype=images.dtype)
    yield "at an image of zeros and ones", torch.randint(0, 2, images.shape, generator=rng).to(images.dtype)
    yield "at the result", images
    yield NEAR, (images + sign * size).clamp(0.0, 1.0)


class _ReadEnough(Exception):  # noqa: N818 - ends a forward pass, and is no error
    pass


@dataclass(frozen=True)
class _Call:
    """What a layer was given, and what it made of it."""

    read: Tensor
    gave: Tensor


def _calls(
    model: nn.Module, layers: Sequence[str], given: Float[Tensor, "batch c h w"], once: bool
) -> dict[str, list[_Call]]:
    """By layer, each of its calls, or the first alone."""
    found: dict[str, list[_Call]] = {name: [] for name in layers}
    reading: list[Tensor] = []

    def before(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        reading.append((inputs[0] if inputs else next(iter(named.values()))).clone())

    def after(calls: list[_Call], *called: Any) -> None:
        calls.append(_Call(reading.pop(), called[-1].clone()))
        if once:
            raise _ReadEnough

    hooks = []
    for name in layers:
        module = model.get_submodule(name)
        hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
        hooks.append(module.register_forward_hook(partial(after, found[name])))
    try:
        with suppress(_ReadEnough), torch.no_grad():
            model(given.clone())
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _not_linear(state: State, model: nn.Module, name: str, call: _Call) -> float:
    """How far what the layer gave, and its gradients in another call, are off those of its weight and bias as sent.

    Relative to the largest number of each; infinite where it is no such layer.
    """
    layer = model.get_submodule(name)
    own = {part: one for part, one in layer.named_parameters(recurse=False) if part in ("weight", "bias")}
    if "weight" not in own or not isinstance(layer, nn.Conv2d | nn.Linear):
        return math.inf
    for one in own.values():
        one.requires_grad_()
    plain = {part: state[f"{name}.{part}"].detach().to(one).requires_grad_() for part, one in own.items()}
    with torch.enable_grad():
        expected, gave = _linear(layer, plain, call.read), layer(call.read.clone())
        if not call.gave.shape == gave.shape == expected.shape:
            return math.inf
        without_bias = _linear(layer, {"weight": plain["weight"]}, call.read).detach()
        back = torch.randn(expected.shape, generator=torch_generator(0, "back")).to(expected)
        found = torch.autograd.grad(gave, list(own.values()), back, allow_unused=True)
        wanted = torch.autograd.grad(expected, list(plain.values()), back)
    off = [_off(one.detach(), expected.detach(), without_bias) for one in (call.gave, gave)]
    return max(*off, *(math.inf if one is None else _off(one, other) for one, other in zip(found, wanted, strict=True)))


def _linear(layer: nn.Conv2d | nn.Linear, own: State, read: Tensor) -> Tensor:
    if isinstance(layer, nn.Linear):
        return F.linear(read, own["weight"], own.get("bias"))
    bias, padding = own.get("bias"), layer.padding
    return F.conv2d(read, own["weight"], bias, layer.stride, padding, layer.dilation, layer.groups)


def _off(read: Tensor, given: Tensor, scale: Tensor | None = None) -> float:
    """The largest difference over the largest number of `scale` or what was given.

    Infinite where they are not the same numbers in one order.
    """
    if read.numel() != given.numel() or len(read) != len(given) or (read.ndim == 4 and read.shape != given.shape):
        return math.inf
    largest = float((given if scale is None else scale).abs().max())
    off = float((read.double().flatten() - given.double().flatten()).abs().max())
    return off / max(largest, 1e-300 if given.dtype == torch.float64 else 1e-30) if math.isfinite(off) else math.inf
