"""What one reaches without any gradient."""

import torch
from torch import Tensor

from fedsim.bounds.public_prior import MOST_IMAGES, PublicPrior
from fedsim.data import FederatedData
from fedsim.public_images import PublicImages, most_of


def public_mean(data: FederatedData, shape: tuple[int, int, int]) -> Tensor:
    """The mean of the pictures that no client holds, [channels, height, width]; mid-grey where there are none."""
    count = min(MOST_IMAGES, len(data.auxiliary))
    return data.auxiliary.images(range(count)).mean(0) if count else torch.full(shape, 0.5)


def public_prior(data: FederatedData) -> PublicPrior | None:
    """The moments of the same images; None where there are none."""
    count = min(MOST_IMAGES, len(data.auxiliary))
    return PublicPrior.of(data.auxiliary.images(range(count))) if count else None


def public_images(data: FederatedData) -> PublicImages | None:
    """Images that no client holds, with their labels; None where there are none."""
    if not len(data.auxiliary):
        return None
    count = min(most_of(tuple(data.auxiliary.images([0]).shape[1:])), len(data.auxiliary))
    return PublicImages.of(data.auxiliary.images(range(count)), data.auxiliary.labels[:count])
