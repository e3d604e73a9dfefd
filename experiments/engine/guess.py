"""What one reaches without any gradient."""

import torch
from torch import Tensor

from fedsim.data import FederatedData

GUESSED_FROM = 512
"""Public pictures at most."""


def public_mean(data: FederatedData, shape: tuple[int, int, int]) -> Tensor:
    """The mean of the pictures that no client holds, [channels, height, width]; mid-grey where there are none."""
    count = min(GUESSED_FROM, len(data.auxiliary))
    return data.auxiliary.images(range(count)).mean(0) if count else torch.full(shape, 0.5)
