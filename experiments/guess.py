"""What one reaches without any gradient."""

import torch
from torch import Tensor

from fedsim.data import FederatedData

GUESSED_FROM = 512
"""Public pictures at most; more change the mean little."""


def public_mean(data: FederatedData, side: int) -> Tensor:
    """The mean of the pictures that no client holds, [3, side, side]; mid-grey where there are none."""
    count = min(GUESSED_FROM, len(data.auxiliary))
    return data.auxiliary.images(range(count)).mean(0) if count else torch.full((3, side, side), 0.5)
