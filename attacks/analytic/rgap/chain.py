"""A network as a chain of linear layers and activations, each reading the output of the one before."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fedsim.errors import NotApplicable

Function = Callable[[Tensor], Tensor]

PASSING = (nn.Flatten, nn.Identity, nn.modules.dropout._DropoutNd)


@dataclass(frozen=True)
class Activation:
    """y = σ(z), entry by entry.

    Attributes:
        inverse: z of y; y is moved inside σ's range first, where errors have taken it out.
        slope: σ'(z).
    """

    name: str
    inverse: Function
    slope: Function


@dataclass(frozen=True)
class Link:
    """One linear layer of the chain and the activation behind it.

    Attributes:
        shape: of its input, without the batch.
        layer: nn.Linear or nn.Conv2d.
    """

    name: str
    layer: nn.Linear | nn.Conv2d
    activation: Activation
    shape: tuple[int, ...]
    output_shape: tuple[int, ...]


IN_FORWARD: tuple[Function, ...] = (torch.sigmoid, torch.tanh, F.leaky_relu, F.relu, F.gelu, F.silu, F.elu)
"""Activations that a model's `forward` may call as functions, where no module shows."""

IDENTITY = Activation("identity", lambda y: y, torch.ones_like)


def layer_chain(model: nn.Module, image_shape: tuple[int, ...]) -> list[Link]:
    """The links from picture to logits, found by running the model once and seeing who reads whose output.

    Raises:
        NotApplicable: something else stands between (pooling, a norm, a residual), or an activation has no inverse.
    """
    parameter = next(model.parameters())
    probe = torch.linspace(-1.0, 1.0, math.prod(image_shape), dtype=parameter.dtype, device=parameter.device)
    ran: list[tuple[str, nn.Module, Tensor, Tensor]] = []
    reading: list[Tensor] = []  # before the layer runs: in place it writes over what it reads
    leaves = {name: module for name, module in model.named_modules() if not any(True for _ in module.children())}
    handles = [
        module.register_forward_hook(
            lambda module, _, output, name=name: ran.append((name, module, reading.pop(), output.clone()))
        )
        for name, module in leaves.items()
    ]
    handles += [
        module.register_forward_pre_hook(lambda _, inputs: reading.append(inputs[0].clone()))
        for module in leaves.values()
    ]
    try:
        with torch.no_grad():
            current = probe.reshape(1, *image_shape)
            logits = model.eval()(current)
    finally:
        for handle in handles:
            handle.remove()
    links: list[Link] = []
    for name, module, read, written in ran:
        if read.numel() != current.numel() or not torch.equal(read.flatten(), current.flatten()):
            raise NotApplicable(_between(f"{name} ({_kind(module)})", current, read))
        current = written
        if isinstance(module, PASSING):
            continue
        if isinstance(module, nn.Linear | nn.Conv2d):
            _check(name, module, read)
            links.append(Link(name, module, IDENTITY, tuple(read.shape[1:]), tuple(written.shape[1:])))
        elif links and links[-1].activation is IDENTITY:
            last = links[-1]
            links[-1] = Link(last.name, last.layer, _activation(name, module), last.shape, last.output_shape)
        else:
            raise NotApplicable(f"{name} ({_kind(module)}) stands where a linear layer was expected")
    if not links or not torch.equal(current.flatten(), logits.flatten()):
        raise NotApplicable("the logits are not the output of the last layer that ran")
    if not isinstance(links[-1].layer, nn.Linear) or links[-1].activation is not IDENTITY:
        raise NotApplicable(f"{links[-1].name} is no linear classifier")
    return links


def _between(reader: str, written: Tensor, read: Tensor) -> str:
    """Why a layer that reads something else than the one before it wrote is refused."""
    for function in IN_FORWARD:
        if read.numel() == written.numel() and torch.allclose(read.flatten(), function(written).flatten()):
            called = getattr(function, "__name__", "an activation")
            return (
                f"{reader} reads {called} of the output before it: an activation must be a module, such as nn.Sigmoid"
            )
    return f"not a plain chain of layers: {reader} does not read the output of the layer before it"


def _check(name: str, module: nn.Linear | nn.Conv2d, read: Tensor) -> None:
    if isinstance(module, nn.Linear):
        if read.ndim != 2:
            raise NotApplicable(f"{name} reads tokens, not one vector")
    elif module.groups != 1 or module.padding_mode != "zeros" or isinstance(module.padding, str):
        raise NotApplicable(f"{name} is a convolution in groups or with other padding than zeros")


def _activation(name: str, module: nn.Module) -> Activation:
    if isinstance(module, nn.LeakyReLU) and module.negative_slope > 0:
        leak = float(module.negative_slope)
        return Activation(
            "leaky_relu",
            lambda y: torch.where(y < 0, y / leak, y),
            lambda z: torch.where(z < 0, leak, 1.0).to(z),
        )
    if isinstance(module, nn.Tanh):
        return Activation("tanh", lambda y: torch.atanh(_inside(y, -1.0, 1.0)), lambda z: 1.0 - z.tanh().square())
    if isinstance(module, nn.Sigmoid):
        return Activation(
            "sigmoid", lambda y: torch.logit(_inside(y, 0.0, 1.0)), lambda z: z.sigmoid() * (1.0 - z.sigmoid())
        )
    raise NotApplicable(f"{name} ({_kind(module)}) is no invertible activation, as leaky ReLU, tanh and sigmoid are")


def _inside(y: Float[Tensor, "..."], low: float, high: float) -> Float[Tensor, "..."]:
    margin = 1e-9 * (high - low)
    return y.clamp(low + margin, high - margin)


def _kind(module: nn.Module) -> str:
    return type(module).__name__
