"""Fine-tuning of a part of the model that is there already."""

from dataclasses import dataclass

from torch import nn

from fedsim.errors import ConfigError, require
from fedsim.models.finetune.recipe import Finetune, known_head


@dataclass(frozen=True)
class Head(Finetune):
    """The classifier alone: a linear probe."""

    NAME = "head"

    def part(self, model: nn.Module) -> set[str]:
        return known_head(model, "finetune", self.NAME)


@dataclass(frozen=True)
class LastK(Finetune):
    """The last k blocks, with what stands behind them.

    Blocks are those of timm's layer-wise learning rates; k of one more than there are takes the embedding too.
    """

    k: int = 1
    NAME = "last_k"

    def __post_init__(self) -> None:
        require("finetune.k", self.k, self.k >= 1, "a whole number of at least 1; finetune=head trains no block")

    def part(self, model: nn.Module) -> set[str]:
        matcher = getattr(model, "group_matcher", None)
        if matcher is None:
            expected = f"a model of timm's, which tells its blocks: {type(model).__name__} does not"
            raise ConfigError("finetune", self.NAME, expected)
        from timm.models import group_parameters

        layers = group_parameters(model, matcher(coarse=False))
        most = len(layers) - 1  # the head is a layer of its own
        expected = f"at most {most}: {type(model).__name__} has {most - 1} blocks, and its embedding is one more"
        require("finetune.k", self.k, self.k <= most, expected)
        order = sorted(layers)
        chosen = {name for layer in order[-self.k - 1 :] for name in layers[layer]}
        if self.k == most:
            return chosen
        names = [name for name, _ in model.named_parameters()]
        in_front = names[: min(map(names.index, layers[order[1]]))]
        # timm counts what its layers do not name to the head, also rotations and biases that all blocks share.
        return chosen - {name for name in layers[order[-1]] if "." in name and name in in_front}


@dataclass(frozen=True)
class Bias(Finetune):
    """Every bias, and the classifier: BitFit (Ben Zaken et al. 2022)."""

    head: bool = True
    NAME = "bias"

    def part(self, model: nn.Module) -> set[str]:
        biases = {name for name, _ in model.named_parameters() if name.endswith("bias")}
        require("finetune", self.NAME, bool(biases), f"a model with biases, {type(model).__name__} has none")
        return biases | (known_head(model, "finetune.head", True) if self.head else set())


@dataclass(frozen=True)
class Norm(Finetune):
    """Weights and biases of every norm layer, and the classifier."""

    head: bool = True
    NAME = "norm"

    def part(self, model: nn.Module) -> set[str]:
        norms = {name: one for name, one in model.named_modules() if "norm" in type(one).__name__.lower()}
        own = {f"{place}.{name}" for place, one in norms.items() for name, _ in one.named_parameters(recurse=False)}
        require("finetune", self.NAME, bool(own), f"a model with norm layers, {type(model).__name__} has none")
        return own | (known_head(model, "finetune.head", True) if self.head else set())
