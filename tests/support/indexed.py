"""A client whose tokens take more than their position embedding."""

import torch
from torch import nn

from defenses import MaskedJigsawPuzzle
from fedsim.effects import Effect


class Indexed(MaskedJigsawPuzzle):
    """IDX as training leaves it: its second table of embeddings is zero at first only."""

    def __init__(self) -> None:
        super().__init__(ratio=0.2, embedding="indexed")

    def effects(self) -> tuple[Effect, ...]:
        return super().effects()

    def wrap_model(self, model: nn.Module) -> nn.Module:
        index = super().wrap_model(model).get_parameter("index_embed")
        with torch.no_grad():
            index.copy_(torch.randn(index.shape, generator=torch.Generator().manual_seed(3)).to(index))
        return model
