"""Prompts: tokens that are learned, beside those of the image."""

import math
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedsim.errors import require
from fedsim.models.finetune.draws import uniform
from fedsim.models.finetune.recipe import Finetune, known_head
from fedsim.models.roles import find_roles

Tokens = Float[Tensor, "batch tokens width"]
More = Float[Tensor, "batch more width"]


@dataclass(frozen=True)
class Prompt(Finetune):
    """Learned tokens that blocks read beside the image's, and the classifier (VPT, Jia et al. 2022).

    They stand behind the image's tokens, which attention without rotary or relative positions cannot tell, and are
    gone before tokens are pooled.

    Attributes:
        tokens: how many.
        deep: every block has its own, in place of those that the block before gave; false: the first block alone.
    """

    tokens: int = 8
    deep: bool = False
    head: bool = True
    NAME = "prompt"

    def __post_init__(self) -> None:
        require("finetune.tokens", self.tokens, self.tokens >= 1, "a whole number of at least 1")

    def part(self, model: nn.Module) -> set[str]:
        return known_head(model, "finetune.head", True) if self.head else set()

    def insert(self, model: nn.Module, seed: int) -> set[str]:
        """Raises ConfigError where blocks read no sequence of tokens, or give tokens rotary or relative positions."""
        roles, blocks, width = find_roles(model), getattr(model, "blocks", None), getattr(model, "embed_dim", None)
        stacked = isinstance(blocks, nn.Sequential | nn.ModuleList) and len(blocks) > 0
        apart = not roles.rotary and not roles.relative
        reads_tokens = stacked and roles.patch is not None and apart and isinstance(width, int)
        expected = "a ViT of timm's whose blocks read tokens without rotary or relative positions"
        expected = f"{expected}: {type(model).__name__} is none"
        require("finetune", self.NAME, reads_tokens, expected)
        assert isinstance(blocks, nn.Sequential | nn.ModuleList)
        assert roles.patch is not None
        assert isinstance(width, int)
        bound = math.sqrt(6 / (3 * roles.patch[0] * roles.patch[1] + width))
        like, added = next(model.parameters()), set()
        for place, block in enumerate(blocks if self.deep else blocks[:1]):
            if "prompt" not in block._parameters:
                drawn = uniform(bound, (1, self.tokens, width), seed, "prompt", str(place))
                block.register_parameter("prompt", nn.Parameter(drawn.to(like)))
                block.register_forward_pre_hook(_prompted_anew if place else _prompted)
            tokens = block.get_parameter("prompt").shape[1]
            require("finetune.tokens", self.tokens, tokens == self.tokens, f"{tokens}: so many has block {place}")
            added.add(f"blocks.{place}.prompt")
        if not any(isinstance(hook, _Without) for hook in blocks[-1]._forward_hooks.values()):
            blocks[-1].register_forward_hook(_Without(self.tokens))
        return added

    def hosts(self, model: nn.Module) -> dict[str, nn.Module]:
        return {name: one for name, one in model.named_modules() if "prompt" in one._parameters}


def _prompted(block: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    tokens, *others = inputs
    return _beside(tokens, block), *others


def _prompted_anew(block: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    tokens, *others = inputs
    return _beside(tokens[:, : -cast(Tensor, block.prompt).shape[1]], block), *others


def _beside(tokens: Tokens, block: nn.Module) -> More:
    return torch.cat([tokens, cast(Tensor, block.prompt).expand(len(tokens), -1, -1)], dim=1)


@dataclass(frozen=True)
class _Without:
    """A hook that takes as many tokens from the end."""

    count: int

    def __call__(self, block: nn.Module, inputs: object, output: More) -> Tokens:
        return output[:, : -self.count]
