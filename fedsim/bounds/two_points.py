"""Two images that nobody can tell apart: a theorem about the named pair behind Gaussian noise, without any prior.

It says of that pair that it cannot be told apart, and of no other image anything.
"""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from scipy.special import ndtr
from torch import Tensor
from torch.nn import functional as F

from fedsim.errors import require

TOLD_APART = 0.9
"""Probability of a right answer from which a pair counts as told apart."""


def right_at_most(distance: float) -> float:
    """Φ(d/2): telling x from x' at equal odds is right with at most this probability, whatever the attacker knows.

    Le Cam's two points for Gaussian noise of known covariance Σ: d = ‖Σ^-½(f(x) - f(x'))‖, and the likelihood ratio
    reaches it (Tsybakov 2009, section 2.3; Dong et al. 2022, definition 2.6).

    >>> [round(right_at_most(d), 3) for d in (0.0, 1.0, 2.563)]
    [0.5, 0.691, 0.9]
    """
    require("distance", distance, distance >= 0, "0 or more")
    return float(ndtr(distance / 2))


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor], std: float) -> float:
    """‖f(x) - f(x')‖ / std over all tensors together, of whatever type, summed in float64.

    Args:
        std: of the noise in every coordinate; 0: no noise, where any difference is told apart.
    """
    wide = {name: torch.promote_types(tensor.dtype, torch.float64) for name, tensor in one.items()}
    squares = [float((one[n].to(kind) - other[n].to(kind)).abs().square().sum()) for n, kind in wide.items()]
    apart = math.sqrt(math.fsum(squares))
    return apart / std if std > 0 else (math.inf if apart > 0 else 0.0)


def blurred(images: Float[Tensor, "batch c h w"], std: float) -> Float[Tensor, "batch c h w"]:
    """Gaussian blur of this standard deviation in pixels, edges repeated by reflection where there is room."""
    require("blurs", std, 0 < std < math.inf, "standard deviations in pixels, above 0")
    reach = min(math.ceil(4 * std), min(images.shape[-2:]) - 1)
    if reach < 1:
        return images.clone()
    at = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    kernel = torch.exp(-0.5 * (at / std) ** 2)
    kernel = kernel / kernel.sum()
    channels = images.shape[1]
    padded = F.pad(images, (reach,) * 4, mode="reflect")
    rows = F.conv2d(padded, kernel.view(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)
    found: Tensor = F.conv2d(rows, kernel.view(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)
    return found


def pixelated(images: Float[Tensor, "batch c h w"], block: int) -> Float[Tensor, "batch c h w"]:
    """Each block of so many pixels a side replaced by its mean; blocks at the right and lower edge may be smaller."""
    require("blocks", block, block >= 2, "sides of blocks in pixels, 2 or more")
    height, width = images.shape[-2:]
    right, below = -width % block, -height % block
    shares = F.avg_pool2d(F.pad(torch.ones_like(images), (0, right, 0, below)), block)
    means = F.avg_pool2d(F.pad(images, (0, right, 0, below)), block) / shares
    found: Tensor = means.repeat_interleave(block, -2).repeat_interleave(block, -1)[..., :height, :width]
    return found.contiguous()
