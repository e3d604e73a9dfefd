"""What a client shares, and what it amounts to as a gradient."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor

from fedsim.effects import Effect, of_training
from fedsim.errors import ConfigError, NotApplicable, nearest

Kind = Literal["gradient", "delta", "weights"]
Precision = Literal["float32", "bfloat16", "float16"]
State = dict[str, Tensor]


def under(prefix: str, tensors: Mapping[str, Tensor]) -> State:
    """The tensors whose names begin with this prefix, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class LocalProtocol:
    """How a client came to its update. The server set it, so the attacker knows it.

    `lrs` holds the learning rate of each local step (empty for a shared gradient); `steps` counts them.
    `betas`, `eps` and `amsgrad` are those of Adam and its kin; an Adam with decoupled weight decay is an AdamW.
    `precision` is of forward and backward; weights are in float32.
    `max_grad_norm` is the L2 norm that each step's gradient, with FedProx's pull, is scaled down to; None: it is not.
    `weight_decay` is that of all parameters but the `undecayed` ones.
    `micro_batch_size` is how many images were computed at once, by which a batch's gradient differs in rounding alone.
    """

    batch_size: int
    steps: int = 1
    optimizer: str = "none"
    lrs: tuple[float, ...] = ()
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    proximal_mu: float = 0.0
    label_smoothing: float = 0.0
    training_mode: bool = True
    precision: Precision = "float32"
    max_grad_norm: float | None = None
    micro_batch_size: int | None = None
    undecayed: tuple[str, ...] = ()
    amsgrad: bool = False

    def __post_init__(self) -> None:
        for name in ("lrs", "betas", "undecayed"):  # a list will do
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "LocalProtocol":
        """A protocol from JSON, in which a whole number may stand for a float."""
        tuples = {key: tuple(map(_as_float, values[key])) for key in ("lrs", "betas") if key in values}
        names = [one.name for one in fields(cls) if one.type in (float, float | None) and one.name in values]
        whole = {**values, **{name: _as_float(values[name]) for name in names}, **tuples}
        return cls(**{**whole, "undecayed": tuple(values.get("undecayed", ()))})

    def decay_of(self, name: str) -> float:
        """The weight decay of one parameter."""
        return 0.0 if name in self._undecayed else self.weight_decay

    @cached_property
    def _undecayed(self) -> frozenset[str]:
        return frozenset(self.undecayed)

    @property
    def effects(self) -> tuple[Effect, ...]:
        """What the training does to a gradient, in the words of defenses."""
        return of_training(self.max_grad_norm)

    @property
    def rounding(self) -> float:
        """The relative rounding of what autocast computed with; 0 where nothing was coarser than the tensors are."""
        return 0.0 if self.precision == "float32" else float(torch.finfo(getattr(torch, self.precision)).eps)

    def gradient_scale(self) -> float:
        """The factor s in `delta = -s·(gradient + weight_decay·weights)` for constant gradients.

        The sum of `step_factors`. One step without momentum gives s = lr, exactly.

        Raises:
            NotApplicable: the optimiser is adaptive, its step is no multiple of the gradient.
        """
        if self.optimizer != "sgd":
            raise NotApplicable(f"a weight delta of {self.optimizer} is not a multiple of the gradient (only SGD's is)")
        scale = sum(self.step_factors())
        if scale <= 0.0:
            reason = "the learning rate was zero in every local step, or FedProx pulls back more than the steps move"
            raise NotApplicable(f"{reason}: the delta holds no gradient")
        return scale

    def step_factors(self) -> tuple[float, ...]:
        """What each local step's gradient is multiplied by in -delta, without weight decay.

        For SGD the momentum buffer at step t is b_t = μ·b_{t-1} + (1 - dampening)·g, b_1 = g, and the step is lr_t·b_t
        (or lr_t·(g + μ·b_t) with Nesterov); in g is the proximal term, which pulls back what earlier steps moved.
        Negative factors, as a dampening above 1 gives, turn signs.

        Raises:
            NotApplicable: the optimiser is adaptive.
        """
        if self.optimizer != "sgd":
            raise NotApplicable(f"the local steps of {self.optimizer} are no multiples of gradients (only SGD's are)")
        return self._step_factors

    @cached_property
    def _step_factors(self) -> tuple[float, ...]:
        if not self.momentum and not self.proximal_mu:
            return tuple(self.lrs)
        steps = len(self.lrs)
        moved = torch.zeros(steps, dtype=torch.float64)
        buffer = moved.clone()
        for step, lr in enumerate(self.lrs):
            gradient = -self.proximal_mu * moved
            gradient[step] += 1.0
            buffer = gradient if step == 0 else self.momentum * buffer + (1.0 - self.dampening) * gradient
            if self.momentum == 0.0:
                direction = gradient
            else:
                direction = gradient + self.momentum * buffer if self.nesterov else buffer
            moved = moved + lr * direction
        return tuple(moved.tolist())


def check_protocol(protocol: LocalProtocol, kind: Kind) -> None:
    """Of a protocol that somebody states by hand.

    Raises:
        ConfigError: it has no image or no step, or local training whose optimiser is none of torch's, or without a
            learning rate for each step.
    """
    for name in ("batch_size", "steps"):
        count = getattr(protocol, name)
        if not isinstance(count, Integral) or int(count) < 1:
            raise ConfigError("protocol", f"{name}={count}", "of 1 or more in whole numbers")
    if kind == "gradient":
        return
    if protocol.optimizer not in OPTIMISERS:
        expected = f"a name of torch.optim in lower case beside {kind}, as sgd or adam"
        hint = nearest(str(protocol.optimizer).lower(), OPTIMISERS)
        raise ConfigError("protocol", f"optimizer={protocol.optimizer}", f"{expected}.{hint}" if hint else expected)
    if len(protocol.lrs) != protocol.steps:
        expected = f"a rate for each of steps={protocol.steps} beside {kind}: lrs=(0.1,) * steps"
        raise ConfigError("protocol", f"lrs={protocol.lrs}", expected)


OPTIMISERS = frozenset(
    name.lower()
    for name, one in vars(torch.optim).items()
    if isinstance(one, type) and issubclass(one, torch.optim.Optimizer) and one is not torch.optim.Optimizer
)
"""What a protocol may call its optimiser: torch's classes in lower case."""


def _as_float(value: Any) -> Any:
    """A whole number that a float can hold exactly as one; anything else as it is."""
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 2**53
    return float(value) if whole else value


@dataclass(frozen=True)
class Update:
    """The tensors that a client shares, by parameter name.

    Withheld tensors are absent; `withheld` says which defense kept them back, name by name.

    Attributes:
        buffers: what local training made of the floating-point buffers (BatchNorm's running statistics): their change
            where kind is `delta`, else their new values. They have no gradient and are no part of `tensors`.
    """

    tensors: State = field(repr=False)
    kind: Kind
    num_examples: int
    withheld: dict[str, str] = field(default_factory=dict)
    buffers: State = field(default_factory=dict, repr=False)

    def as_gradient(self, protocol: LocalProtocol, global_state: Mapping[str, Tensor], pruned: bool = False) -> State:
        """The mean-loss gradient that this update amounts to, in float64.

        Exact for a shared gradient and for one SGD step, as it was clipped; for several steps it is their average
        gradient under the assumption that it did not change. A delta of k steps is -s·gradient, with
        the s of `LocalProtocol.gradient_scale`; known weight decay is subtracted, as if nothing had scaled the change.

        Args:
            pruned: zeros stand for what was cut off: weight decay is no part of them, and they stay zero.

        Raises:
            NotApplicable: the local optimiser was adaptive.
        """
        if self.kind == "gradient":
            return {name: tensor.double() for name, tensor in self.tensors.items()}
        scale = protocol.gradient_scale()
        gradient: State = {}
        for name, tensor in self.tensors.items():
            if not tensor.is_floating_point():
                continue
            start = global_state[name].double()
            delta = tensor.double() - start if self.kind == "weights" else tensor.double()
            decay = protocol.decay_of(name) * start
            gradient[name] = -delta / scale - (decay.masked_fill(delta == 0, 0.0) if pruned else decay)
        return gradient


@dataclass(frozen=True)
class Shared:
    """An update, how it came about, and whose it is.

    Attributes:
        client: its partition (of the first in a sum), or its number in an audit.
        clients: whose updates are summed in it.
    """

    update: Update
    protocol: LocalProtocol
    client: int = 0
    server_round: int = 0
    clients: int = 1
