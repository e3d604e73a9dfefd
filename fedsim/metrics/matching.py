"""Which reconstruction belongs to which original: a batch's gradient does not know the order."""

import torch
from jaxtyping import Float
from torch import Tensor


def pairwise_mse(
    originals: Float[Tensor, "batch channels height width"],
    images: Float[Tensor, "rebuilt channels height width"],
) -> Float[Tensor, "batch rebuilt"]:
    """Mean squared error of every original with every reconstruction, float64."""
    distances = torch.cdist(originals.double().flatten(1), images.double().flatten(1))
    return distances.square() / originals[0].numel()


def match(
    originals: Float[Tensor, "batch channels height width"],
    images: Float[Tensor, "rebuilt channels height width"],
) -> list[int | None]:
    """For each original the index of its reconstruction: the assignment with the least total MSE (Hungarian).

    With fewer reconstructions than originals the rest stays None, with more the superfluous ones are left
    out. A reconstruction with a value that is not finite is no picture and is never matched.
    """
    from scipy.optimize import linear_sum_assignment

    usable = images.isfinite().flatten(1).all(dim=1).nonzero().flatten()
    matched: list[int | None] = [None] * len(originals)
    if len(originals) == 0 or len(usable) == 0:
        return matched
    costs = pairwise_mse(originals.to(images.device), images[usable])
    for original, candidate in zip(*linear_sum_assignment(costs.cpu().numpy()), strict=True):
        matched[int(original)] = int(usable[int(candidate)])
    return matched
