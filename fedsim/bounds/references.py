"""What stands beside an attack's result: a Gaussian reference, and the local fact whether an image is determined.

Neither is a theorem on real images: the reference is what second moments alone can give, and who knows more of images
may pass it; the fact is about images near this one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedsim.bounds.gaussian_prior import ImagePrior

SKETCH_ROUNDS = 5
"""Of the fixed point that takes the bias off a sketch's inverse."""


def information(jacobian: Float[Tensor, "numbers pixels"], std: Float[Tensor, " numbers"]) -> Float[Tensor, "n n"]:
    """JᵀΣ⁻¹J, the Fisher information about the pixels where Gaussian noise of these deviations is added to f(x).

    Args:
        jacobian: of what is shared, by pixels in [0, 1].
    """
    whitened = jacobian / std[:, None]
    found: Tensor = whitened.T @ whitened
    return found


def prior_precision(prior: ImagePrior, image_shape: Sequence[int]) -> Float[Tensor, "n n"]:
    """C⁻¹ of one image's pixels, float64."""
    pixels = math.prod(image_shape)
    basis = torch.eye(pixels, dtype=torch.float64).view(pixels, *image_shape)
    rows = prior.whitened(basis + prior.centre((1, *image_shape))).flatten(1)
    found: Tensor = rows @ rows.T
    return found


def gaussian_reference(
    each: Sequence[Float[Tensor, "n n"]], precision: Float[Tensor, "n n"], rows: int | None = None
) -> float:
    """dB of van Trees' bound on the mean squared error under a Gaussian prior: tr((E[JᵀΣ⁻¹J] + C⁻¹)⁻¹)/n (1968).

    A theorem where the noise is Gaussian and the mean of `each` is that over images drawn from that Gaussian; of the
    images audited a reference. The information is averaged over images before the inverse: compare with squared errors
    averaged over images.

    Of one image after several rounds it takes the sum Σ_t J_tᵀΣ_t⁻¹J_t, where each round's weights depend on earlier
    releases alone, however they were chosen. A client that stops sharing says something by its silence: count that as
    a release, or decide by public quantities.

    Args:
        each: the information about each image.
        rows: of the sketch of Σ^-½J that the information is of, more than n; None: of J whole.
    """
    matrix = torch.stack(list(each)).mean(dim=0)
    mean_squared_error = float(_inverse(matrix, precision, rows).trace()) / len(matrix)
    return -10.0 * math.log10(mean_squared_error)


def image_by_image(
    each: Sequence[Float[Tensor, "n n"]], precision: Float[Tensor, "n n"] | Sequence[Float[Tensor, "n n"]]
) -> float:
    """dB of the squared error that each image's own linearisation leaves, averaged: E[tr((JᵀΣ⁻¹J + C⁻¹)⁻¹)]/n.

    The error of the best estimate under that Gaussian, to first order, where the noise is small enough for J to be the
    same as far as it goes; no bound, and attacks pass it. With one precision for all never above `gaussian_reference`,
    which averages the information first: where what is unclear differs from image to image that one rises with the
    number of images.

    Args:
        precision: C⁻¹ of all, or of each image, as where its class is known.
    """
    known = [precision] * len(each) if isinstance(precision, Tensor) else precision
    errors = [float(_inverse(one, own, None).trace()) / len(one) for one, own in zip(each, known, strict=True)]
    return -10.0 * math.log10(sum(errors) / len(errors))


def _inverse(matrix: Float[Tensor, "n n"], precision: Float[Tensor, "n n"], rows: int | None) -> Float[Tensor, "n n"]:
    """(G + C⁻¹)⁻¹; of a sketch s(G' + sC⁻¹)⁻¹, s = 1 - d/rows, d = tr(G(G + C⁻¹)⁻¹) (Dereziński et al. 2020)."""
    found: Tensor = torch.linalg.inv(matrix + precision)
    if rows is None:
        return found
    for _ in range(SKETCH_ROUNDS):
        share = 1.0 - (len(matrix) - float((precision * found).sum())) / rows
        found = share * torch.linalg.inv(matrix + share * precision)
    return found


@dataclass(frozen=True)
class Determined:
    """Whether an image is determined by what is shared, near this image; it proves no protection.

    Attributes:
        unknowns: numbers of all images together, three to a colour pixel.
        rank: how many directions change what is shared, to the precision of the singular values.
        condition: the largest singular value over the smallest, each number in units of its rounding.
        rounding_psnr: dB that rounding alone would leave, to first order; -inf where a direction is lost.
    """

    unknowns: int
    rank: int
    condition: float
    rounding_psnr: float


def determined(
    jacobian: Float[Tensor, "numbers pixels"], rounding: Float[Tensor, " numbers"], least: float = 0.0
) -> Determined:
    """The singular values of J, float64, each number in units of the rounding of what was shared.

    Args:
        rounding: standard deviation of each shared number.
        least: of its roundings, by which a direction must move what is shared from one corner of [0, 1] to the other.
    """
    whitened = jacobian.double() / rounding.double()[:, None]
    singular = torch.linalg.svdvals(whitened)
    unknowns = jacobian.shape[1]
    precision = float(singular[0]) * max(whitened.shape) * torch.finfo(torch.float64).eps
    resolved = singular > max(precision, least / math.sqrt(unknowns))
    rank = int(resolved.sum())
    if rank < unknowns:
        return Determined(unknowns, rank, math.inf, -math.inf)
    left = float(singular.pow(-2).sum()) / unknowns
    return Determined(unknowns, rank, float(singular[0] / singular[-1]), -10.0 * math.log10(left))
