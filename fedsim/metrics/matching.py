"""Which reconstruction belongs to which original: a batch's gradient does not know the order."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fedsim.metrics.image import PSNR_CAP
from fedsim.report.thresholds import EXACT, RECOGNISABLE


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
    """For each original the index of its reconstruction, as many exact ones as there can be (Hungarian).

    Of the assignments with the most exact pairs the one with the most recognisable pairs, then with the largest total
    PSNR. The least total squared error would let one reconstruction that is far from all originals move
    an exact one to another original. With fewer reconstructions than originals the rest stays None, with more the
    superfluous ones are left out. A reconstruction with a value that is not finite is no picture and is never matched.
    """
    from scipy.optimize import linear_sum_assignment

    usable = images.isfinite().flatten(1).all(dim=1).nonzero().flatten()
    matched: list[int | None] = [None] * len(originals)
    if len(originals) == 0 or len(usable) == 0:
        return matched
    worth = _worth(pairwise_mse(originals.to(images.device), images[usable]))
    for original, candidate in zip(*linear_sum_assignment(worth.cpu().numpy(), maximize=True), strict=True):
        matched[int(original)] = int(usable[int(candidate)])
    return matched


def match_both(
    seen: Float[Tensor, "forms channels height width"],
    images: Float[Tensor, "rebuilt channels height width"],
    private: Float[Tensor, "batch channels height width"],
    own: Float[Tensor, "rebuilt channels height width"],
    groups: Sequence[Sequence[int]],
) -> tuple[list[int | None], list[int | None]]:
    """For each form, and for each private image, the index of its reconstruction: each stands for one private image.

    For fewer reconstructions than private images, or as many where those have several forms, where the two would find
    different ones. Most pairs that are exact as the model saw them come first, then those exact and recognisable as the
    client's own, then recognisable as seen.

    Args:
        own: what the reconstructions are taken for as the client's own images.
        groups: places in `seen` of each private image's forms.
    """
    from scipy.optimize import linear_sum_assignment

    usable = images.isfinite().flatten(1).all(dim=1).nonzero().flatten()
    of_forms: list[int | None] = [None] * len(seen)
    of_private: list[int | None] = [None] * len(private)
    if len(private) == 0 or len(usable) == 0:
        return of_forms, of_private
    by_form = _decibels(pairwise_mse(seen.to(images.device), images[usable]))
    as_seen = torch.stack([by_form[list(group)].amax(dim=0) for group in groups])
    as_own = _decibels(pairwise_mse(private.to(own.device), own[usable])).to(as_seen)
    worth = as_own / PSNR_CAP
    more = float(min(worth.shape) + 1)
    for better in (as_seen >= RECOGNISABLE, as_own >= RECOGNISABLE, as_own >= EXACT, as_seen >= EXACT):
        worth = worth + more * better
        more *= min(worth.shape) + 1
    for place, candidate in zip(*linear_sum_assignment(worth.cpu().numpy(), maximize=True), strict=True):
        result = int(usable[int(candidate)])
        of_private[int(place)] = result
        group = list(groups[int(place)])
        of_forms[group[int(by_form[group, int(candidate)].argmax())]] = result
    return of_forms, of_private


def _decibels(errors: Float[Tensor, "batch rebuilt"]) -> Float[Tensor, "batch rebuilt"]:
    return (-10.0 * errors.log10()).clamp(0.0, PSNR_CAP)


def _worth(errors: Float[Tensor, "batch rebuilt"]) -> Float[Tensor, "batch rebuilt"]:
    """dB of a pair, and more for a recognisable one, and more again for an exact one, than all dB together."""
    decibels = _decibels(errors)
    more = PSNR_CAP * (min(errors.shape) + 1)
    return decibels + more * (decibels >= RECOGNISABLE) + more**2 * (decibels >= EXACT)
