"""Swin with the absolute position embedding that its authors offer and timm lacks; registered with timm by name."""

from typing import Any

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.swin_transformer import SwinTransformer
from torch import Tensor, nn

default_cfgs = generate_default_cfgs(
    {
        "swin_ape_tiny_patch4_window7_224.untrained": {
            "input_size": (3, 224, 224),
            "mean": IMAGENET_DEFAULT_MEAN,
            "std": IMAGENET_DEFAULT_STD,
            "num_classes": 1000,
            "fixed_input_size": True,
            "first_conv": "patch_embed.proj",
            "classifier": "head.fc",
        }
    }
)


class SwinWithPositions(SwinTransformer):
    """Adds `pos_embed` [1, patches, width] to the patch tokens in front of the first stage (Liu et al. 2021, `ape`)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rows, columns = self.patch_embed.grid_size  # type: ignore[misc]
        self.pos_embed = nn.Parameter(torch.zeros(1, rows * columns, self.embed_dim))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def forward_features(self, x: Tensor) -> Tensor:
        tokens = self.patch_embed(x)
        tokens = tokens + self.pos_embed.unflatten(1, tokens.shape[1:3])
        features: Tensor = self.norm(self.layers(tokens))
        return features

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        return {**super().group_matcher(coarse), "stem": r"^patch_embed|^pos_embed"}

    def no_weight_decay(self) -> set[str]:
        return {*super().no_weight_decay(), "pos_embed"}


@register_model
def swin_ape_tiny_patch4_window7_224(pretrained: bool = False, **kwargs: Any) -> SwinWithPositions:
    """Swin-T with absolute positions, 56×56 patches at 224 pixels (`img_size`, `window_size` change it); untrained."""
    settings = {"patch_size": 4, "window_size": 7, "embed_dim": 96, "depths": (2, 2, 6, 2), "num_heads": (3, 6, 12, 24)}
    model: SwinWithPositions = build_model_with_cfg(
        SwinWithPositions, "swin_ape_tiny_patch4_window7_224", pretrained, **{**settings, **kwargs}
    )
    return model
