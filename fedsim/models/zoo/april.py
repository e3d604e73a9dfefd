"""The architecture of APRIL's closed form (Lu et al. 2022, section 3.2)."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedsim.errors import ConfigError

if TYPE_CHECKING:
    from timm.models.vision_transformer import Block


class DirectAttentionBlock(nn.Module):
    """A transformer block whose attention is the embedding's only reader.

    No LayerNorm stands before the attention and no residual goes around it; the MLP half of the
    original block is kept as it is. Parameter names are those of the block it replaces, less `norm1`.
    """

    def __init__(self, block: "Block") -> None:
        super().__init__()
        self.attn = block.attn
        self.norm2 = block.norm2
        self.mlp = block.mlp
        self.ls2 = block.ls2
        self.drop_path2 = block.drop_path2

    def forward(self, x: Tensor) -> Tensor:
        x = self.attn(x)
        out: Tensor = x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))
        return out


def read_embedding_directly(model: nn.Module) -> None:
    """Replace the first block of a timm ViT by a `DirectAttentionBlock`, in place.

    Raises:
        ConfigError: the model is no timm ViT with pre-norm blocks.
    """
    from timm.models.vision_transformer import Block, VisionTransformer

    if not isinstance(model, VisionTransformer) or len(model.blocks) == 0:
        raise ConfigError("model.variant", "april", f"a timm VisionTransformer, not {type(model).__name__}")
    first = model.blocks[0]
    if not isinstance(first, Block):
        raise ConfigError("model.variant", "april", f"of pre-norm blocks, not {type(first).__name__}")
    if not isinstance(model.norm_pre, nn.Identity):
        raise ConfigError("model.variant", "april", "a model without a norm before its blocks (norm_pre)")
    model.blocks[0] = DirectAttentionBlock(first)


def reads_embedding_directly(model: nn.Module) -> bool:
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.Sequential | nn.ModuleList) or len(blocks) == 0:
        return False
    return isinstance(blocks[0], DirectAttentionBlock)


def sincos_position_embedding(grid: tuple[int, int], width: int, prefix: int = 0) -> Tensor:
    """The fixed 2D sin-cos embedding of MAE and MoCo-v3, zeros for prefix tokens: [prefix + tokens, width].

    Raises:
        ConfigError: `width` is not a multiple of 4.
    """
    if width % 4:
        raise ConfigError("model.kwargs.embed_dim", width, "a multiple of 4 for sin-cos embeddings")
    rows, columns = torch.meshgrid(
        torch.arange(grid[0], dtype=torch.float64), torch.arange(grid[1], dtype=torch.float64), indexing="ij"
    )
    frequency = 10_000.0 ** (-torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    parts = []
    for position in (columns, rows):
        angle = position.reshape(-1, 1) * frequency
        parts += [angle.sin(), angle.cos()]
    return torch.cat([torch.zeros(prefix, width, dtype=torch.float64), torch.cat(parts, dim=1)])
