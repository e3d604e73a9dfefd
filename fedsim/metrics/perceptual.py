"""LPIPS (Zhang et al. 2018), where the weights of its backbone are already on the machine."""

from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

SMALLEST_SIDE = 64
"""Pixels of the shorter side below which a picture is enlarged first: AlexNet shrinks by 32."""


def lpips(
    images: Float[Tensor, "batch channels height width"], originals: Float[Tensor, "batch channels height width"]
) -> Float[Tensor, " batch"] | None:
    """Learned perceptual distance (AlexNet) of pictures in [0, 1], 0 for equal ones; None without the weights.

    Never downloads: see `lpips_hint`. Grey pictures are repeated to three channels. Pictures with a shorter
    side below 64 pixels are enlarged bilinearly until it has 64, so that the last feature maps have more than
    one position; numbers in the literature for 32-pixel pictures without that step are others.
    """
    weights = weights_file()
    if not weights.is_file():
        return None
    network = _network(weights, images.device)
    with torch.no_grad():
        distances: Tensor = network(_prepare(images), _prepare(originals), normalize=True)
    return distances.flatten().double()


def lpips_hint() -> str | None:
    """One line that says how to get LPIPS, or None where it is available."""
    weights = weights_file()
    if weights.is_file():
        return None
    folder = str(weights.parent).replace(str(Path.home()), "~", 1)
    return f"LPIPS is left out: put {_address()} into {folder} to have it"


def weights_file() -> Path:
    """Where torchvision looks for the AlexNet weights before it would download them."""
    return Path(torch.hub.get_dir()) / "checkpoints" / Path(_address()).name


def _address() -> str:
    from torchvision.models import AlexNet_Weights

    url: str = AlexNet_Weights.DEFAULT.url
    return url


@lru_cache(maxsize=2)
def _network(weights: Path, device: torch.device) -> nn.Module:
    """LPIPS' network, loaded once per file and device."""
    from torchmetrics.image.lpip import LearnedPerceptualImagePatchSimilarity  # takes a second, weights or not

    network = LearnedPerceptualImagePatchSimilarity(net_type="alex", normalize=True).net
    assert isinstance(network, nn.Module)
    return network.to(device).eval()


def _prepare(images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch 3 tall wide"]:
    pictures = images.float().clamp(0, 1)
    if pictures.shape[1] == 1:
        pictures = pictures.expand(-1, 3, -1, -1)
    shorter = min(pictures.shape[-2:])
    if shorter < SMALLEST_SIDE:
        size = [round(side * SMALLEST_SIDE / shorter) for side in pictures.shape[-2:]]
        pictures = F.interpolate(pictures, size=size, mode="bilinear", align_corners=False)
    return pictures
