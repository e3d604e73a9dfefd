"""Adapters: small modules behind the frozen ones."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from fedsim.errors import nearest, require
from fedsim.models.finetune.draws import uniform
from fedsim.models.finetune.recipe import Finetune, known_head


class Bottleneck(nn.Module):
    """h + U·gelu(D·h + d) + u, U and u zero at first."""

    def __init__(self, width: int, hidden: int, seed: int, name: str, like: Tensor) -> None:
        super().__init__()
        self.down = nn.Linear(width, hidden, device="meta")
        self.up = nn.Linear(hidden, width, device="meta")
        bound = 1 / math.sqrt(width)  # as torch draws them
        weight = uniform(bound, (hidden, width), seed, "adapter", name, "weight")
        bias = uniform(bound, (hidden,), seed, "adapter", name, "bias")
        self.down.weight, self.down.bias = nn.Parameter(weight.to(like)), nn.Parameter(bias.to(like))
        self.up.weight = nn.Parameter(like.new_zeros(width, hidden))
        self.up.bias = nn.Parameter(like.new_zeros(width))

    def forward(self, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        adapted: Tensor = hidden + self.up(F.gelu(self.down(hidden)))
        return adapted


@dataclass(frozen=True)
class Adapter(Finetune):
    """A bottleneck behind chosen modules of every block, before the residual, and the classifier (Houlsby et al. 2019).

    Attributes:
        hidden: units of the bottleneck.
        after: last parts of the modules' names: `mlp` and `attn` in timm's ViTs.
    """

    hidden: int = 16
    after: Sequence[str] = ("mlp",)
    head: bool = True
    NAME = "adapter"

    def __post_init__(self) -> None:
        require("finetune.hidden", self.hidden, self.hidden >= 1, "a whole number of at least 1")
        words = not isinstance(self.after, str) and all(isinstance(one, str) for one in self.after)
        require("finetune.after", self.after, words and bool(self.after), "names of modules, as in [attn,mlp]")
        object.__setattr__(self, "after", tuple(self.after))  # as a file gives them back

    def part(self, model: nn.Module) -> set[str]:
        return known_head(model, "finetune.head", True) if self.head else set()

    def insert(self, model: nn.Module, seed: int) -> set[str]:
        """Raises ConfigError where a name is none of a module that ends in a linear layer."""
        ends = {name: linear[-1].weight.detach() for name, one in model.named_modules() if (linear := _linear(one))}
        known = {name.rpartition(".")[2] for name in ends if name}
        for after in self.after:
            expected = f"the last part of a module's name: {', '.join(sorted(known))}.{nearest(after, known)}"
            require("finetune.after", after, after in known, expected)
        added = set()
        for name, like in ends.items():
            if name.rpartition(".")[2] in self.after:
                host = model.get_submodule(name)
                if not hasattr(host, "adapter"):
                    host.add_module("adapter", Bottleneck(len(like), self.hidden, seed, name, like))
                    host.register_forward_hook(_adapted)
                adapter = host.get_submodule("adapter")
                hidden = len(adapter.get_parameter("down.weight"))
                require("finetune.hidden", self.hidden, hidden == self.hidden, f"{hidden}: so many units has {name}")
                added |= {f"{name}.adapter.{part}" for part, _ in adapter.named_parameters()}
        return added

    def hosts(self, model: nn.Module) -> dict[str, nn.Module]:
        return {name: one for name, one in model.named_modules() if hasattr(one, "adapter")}


def _linear(module: nn.Module) -> list[nn.Linear]:
    return [one for one in module.modules() if isinstance(one, nn.Linear)]


def _adapted(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
    return cast(Tensor, cast(nn.Module, module.adapter)(output))
