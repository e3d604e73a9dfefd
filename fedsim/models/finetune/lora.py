"""Low-rank adaptation of linear layers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from fedsim.errors import nearest, one_of, require
from fedsim.models.finetune.draws import uniform
from fedsim.models.finetune.recipe import Finetune, known_head

AGGREGATES = ("both", "freeze_a", "local_pair")


class LowRankLinear(nn.Linear):
    """A linear layer of weight W + s·B·A; its own parameters are those of the layer it stands for, by their names.

    On a client it may have a second pair of factors, whose product is added: `local_A`, `local_B`.
    """

    def __init__(self, layer: nn.Linear, first: Float[Tensor, "rank inputs"], scale: float) -> None:
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.lora_A = nn.Parameter(first.to(layer.weight))
        self.lora_B = nn.Parameter(layer.weight.new_zeros(layer.out_features, len(first)))
        self.register_parameter("local_A", None)
        self.register_parameter("local_B", None)
        self.scale = scale

    def add_local(self, first: Float[Tensor, "rank inputs"]) -> None:
        """Put in the second pair; its B is zero."""
        self.local_A = nn.Parameter(first.to(self.weight))
        self.local_B = nn.Parameter(torch.zeros_like(self.lora_B))

    def forward(self, input: Tensor) -> Tensor:
        low = F.linear(F.linear(input, self.lora_A), self.lora_B)
        if self.local_A is not None:
            low = low + F.linear(F.linear(input, self.local_A), self.local_B)
        return super().forward(input) + self.scale * low


@dataclass(frozen=True)
class LoRA(Finetune):
    """W + (alpha / rank)·B·A on chosen linear layers, B zero at first, and the classifier (Hu et al. 2022).

    A is drawn as torch draws a linear layer's weight, by the seed and the layer's name.

    Attributes:
        targets: last parts of the names of linear layers: `qkv`, `proj`, `fc1`, `fc2` in timm's ViTs.
        aggregate: `both`: A and B are shared, and averaged apart (FedIT, Zhang et al. 2024); `freeze_a`: A stays as it
            was drawn, and B alone is trained (FFA-LoRA, Sun et al. 2024); `local_pair`: as `both`, and beside the
            shared pair each client trains one of its own, which it keeps (two adapters as in FDLoRA, Qi et al. 2024).
    """

    rank: int = 8
    alpha: float = 16.0
    targets: Sequence[str] = ("qkv", "proj")
    aggregate: str = "both"
    head: bool = True
    NAME = "lora"

    def __post_init__(self) -> None:
        require("finetune.rank", self.rank, self.rank >= 1, "a whole number of at least 1")
        require("finetune.alpha", self.alpha, 0 < self.alpha < math.inf, "a positive number")
        words = not isinstance(self.targets, str) and all(isinstance(one, str) for one in self.targets)
        require("finetune.targets", self.targets, words and bool(self.targets), "names of layers, as in [qkv,proj]")
        one_of("finetune.aggregate", self.aggregate, AGGREGATES)
        object.__setattr__(self, "targets", tuple(self.targets))  # as a file gives them back

    def part(self, model: nn.Module) -> set[str]:
        return known_head(model, "finetune.head", True) if self.head else set()

    def insert(self, model: nn.Module, seed: int) -> set[str]:
        """Raises ConfigError where a target names no linear layer, or one with factors of another rank or scale."""
        layers = {name: one for name, one in model.named_modules() if type(one) in (nn.Linear, LowRankLinear)}
        ends = {name.rpartition(".")[2] for name in layers}
        for target in self.targets:
            expected = f"the last part of a linear layer's name: {', '.join(sorted(ends))}.{nearest(target, ends)}"
            require("finetune.targets", target, target in ends, expected)
        added = set()
        for name, layer in layers.items():
            if name.rpartition(".")[2] in self.targets:
                most = min(layer.in_features, layer.out_features)
                expected = f"at most {most}: {name} has {layer.in_features} inputs and {layer.out_features} outputs"
                require("finetune.rank", self.rank, self.rank <= most, expected)
                bound = 1 / math.sqrt(layer.in_features)
                first = uniform(bound, (self.rank, layer.in_features), seed, "lora_A", name)
                if isinstance(layer, LowRankLinear):
                    same = (len(layer.lora_A), layer.scale) == (self.rank, self.alpha / self.rank)
                    expected = (
                        f"{len(layer.lora_A)}, alpha={len(layer.lora_A) * layer.scale:g}: such factors has {name}"
                    )
                    require("finetune.rank", self.rank, same, expected)
                else:
                    model.set_submodule(name, LowRankLinear(layer, first, self.alpha / self.rank))
                added |= {f"{name}.lora_B"} | ({f"{name}.lora_A"} if self.aggregate != "freeze_a" else set())
        return added

    @property
    def keeps(self) -> bool:
        return self.aggregate == "local_pair"

    def personalise(self, model: nn.Module, seed: int) -> set[str]:
        """Every client draws the same A, by the seed and the layer's name; B is zero at first."""
        added: set[str] = set()
        for name, layer in self.hosts(model).items() if self.keeps else ():
            assert isinstance(layer, LowRankLinear)
            bound = 1 / math.sqrt(layer.in_features)
            layer.add_local(uniform(bound, (self.rank, layer.in_features), seed, "local_A", name))
            added |= {f"{name}.local_A", f"{name}.local_B"}
        return added

    def hosts(self, model: nn.Module) -> dict[str, nn.Module]:
        return {name: one for name, one in model.named_modules() if isinstance(one, LowRankLinear)}
