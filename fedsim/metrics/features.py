"""How far two pictures are apart for a network that reads them."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

TINY = 1e-10


def feature_distance(
    found: Sequence[Float[Tensor, "batch _ _ _"]], truth: Sequence[Float[Tensor, "batch _ _ _"]]
) -> Float[Tensor, " batch"]:
    """Mean over layers and places of ‖û - v̂‖², û and v̂ of unit length along the channels; float64, in [0, 4].

    LPIPS (Zhang et al. 2018, eq. 1) with all weights 1, for feature maps of any network: its numbers hold for that one.

    Args:
        found, truth: feature maps [B,C,H,W] of each layer.
    """
    distances = []
    for one, other in zip(found, truth, strict=True):
        u, v = (maps.double() / (maps.double().norm(dim=1, keepdim=True) + TINY) for maps in (one, other))
        distances.append((u - v).square().sum(dim=1).mean(dim=(1, 2)))
    mean: Tensor = torch.stack(distances).mean(dim=0)
    return mean
