"""The embedded default: a ViT that trains on 8-pixel digits in seconds, registered with timm by name."""

from typing import Any

from timm.models import build_model_with_cfg, register_model
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from fedsim.models.zoo.plain import untrained

default_cfgs = untrained("vit_nano_patch2_8", side=8, first_conv="patch_embed.proj", classifier="head")


@register_model
def vit_nano_patch2_8(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """ViT of 2 blocks, width 64, 4 heads, for 8×8 pictures in 16 patches of 2×2; untrained.

    Position embeddings start at a standard deviation of 0.5 instead of timm's 0.02: with so few and so
    small patches, where a stroke is matters more than what it looks like.
    """
    settings = {"img_size": 8, "patch_size": 2, "embed_dim": 64, "depth": 2, "num_heads": 4, "mlp_ratio": 2.0}
    model: VisionTransformer = build_model_with_cfg(
        VisionTransformer, "vit_nano_patch2_8", pretrained, **{**settings, **kwargs}
    )
    if model.pos_embed is not None:
        nn.init.normal_(model.pos_embed, std=0.5)
    return model
