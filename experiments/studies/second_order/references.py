"""J at the images themselves: whole for digits, by a sketch at 32 pixels."""

import math

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attacks.optimization import Pixels
from attacks.optimization.matching.local_steps import unit_scale
from attacks.optimization.problem import Problem, local_updates, make_problem, shared_update
from attacks.optimization.second_order.residual.errors import autocast_of, rounding_of
from attacks.optimization.second_order.residual.residual import Residual, make_residuals
from attacks.optimization.second_order.stages import TOGETHER
from attacks.optimization.second_order.steps.sketch import Pieces, sketch, sketch_rows
from attacks.positions import of_images
from fedsim.bounds.public_prior import PublicPrior
from fedsim.bounds.references import gaussian_reference
from fedsim.observation import Observation

ROWS_EACH = 8.0
"""Of the sketch, for each pixel."""


def linear(seen: Observation, images: Tensor, labels: Tensor, prior: PublicPrior) -> tuple[Tensor, Tensor, Tensor]:
    """J by pixels in [0, 1] at the images themselves, and the standard deviations of noise and of rounding.

    Of what counts: a number that was pruned has no row.
    """
    residual, rounding = _residual(seen, labels, prior, torch.float64)
    x = seen.normalised(images).flatten()
    with sdpa_kernel(SDPBackend.MATH):
        J = residual.jacobian(x)[: len(residual.weights)]
    counts = residual.weights > 0
    weights = residual.weights[counts]
    return J[counts] / weights[:, None] / _pixel_std(seen, images), 1.0 / weights, rounding[counts]


def sketched(
    seen: Observation, images: Tensor, labels: Tensor, prior: PublicPrior, dtype: torch.dtype, rounding: bool = False
) -> tuple[Tensor, int]:
    """JᵀΣ⁻¹J by pixels in [0, 1], of a sketch of so many rows; Σ is 1, or of the rounding of what was shared."""
    residual, errors = _residual(seen, labels, prior, dtype)
    x = seen.normalised(images).flatten().to(dtype)
    weights = 1.0 / errors if rounding else torch.ones_like(errors)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        pieces = Pieces(residual.shared, weights.to(dtype))
        found = sketch(pieces, x, len(x), len(x), TOGETHER, ROWS_EACH).normal
    std = _pixel_std(seen, images)
    return found / std / std[:, None], sketch_rows(len(x), ROWS_EACH)


def noise_std(seen: Observation, labels: Tensor, prior: PublicPrior) -> float:
    """Of each shared number, where they all have the same."""
    residual, _ = _residual(seen, labels, prior, torch.float64)
    return 1.0 / float(residual.weights.square().mean().sqrt())


def left_by_rounding(information: Tensor, rows: int) -> float:
    """dB that rounding alone would leave, to first order: as behind noise of that size, with nothing known before."""
    return gaussian_reference([information], torch.zeros_like(information), rows)


def behind_rounding(jacobian: Tensor, rounding: Tensor, prior: PublicPrior) -> float:
    """dB that second moments leave of Gaussian images whose update is rounded, as behind noise of that size.

    The same as `gaussian_reference` of JᵀΣ⁻¹J, but by the singular values of Σ^-½JC^½: rounding is small, and where
    directions are missing JᵀΣ⁻¹J + C⁻¹ is singular in float64.

    Args:
        jacobian: by pixels in [0, 1], of one image's or of a batch's, one after the other.
        rounding: standard deviation of each shared number.
    """
    shape = prior.mean.shape
    pixels = shape.numel()
    colouring = (prior.coloured(torch.eye(pixels, dtype=torch.float64).view(-1, *shape)) - prior.mean).flatten(1)
    batch = jacobian.shape[1] // pixels
    whitened = ((jacobian / rounding[:, None]).unflatten(1, (batch, pixels)) @ colouring.T).flatten(1)
    if len(whitened) > whitened.shape[1]:
        whitened = torch.linalg.qr(whitened, mode="r").R
    _, singular, axes = torch.linalg.svd(whitened)
    left = torch.ones(len(axes), dtype=torch.float64)
    left[: len(singular)] = 1.0 / (1.0 + singular.square())
    reached = (axes.unflatten(1, (batch, pixels)) @ colouring).square().sum(dim=(1, 2))
    return -10.0 * math.log10(float(left @ reached) / len(axes))


def _residual(seen: Observation, labels: Tensor, prior: PublicPrior, dtype: torch.dtype) -> tuple[Residual, Tensor]:
    """The last stage's, and the standard deviation of each number's rounding."""
    cpu = torch.device("cpu")
    local = local_updates("auto", seen)
    target = of_images(seen, shared_update(seen, local, cpu))
    problem: Problem = make_problem(seen, target, labels, Pixels(), {}, cpu)
    residual = make_residuals(problem, local, prior, labels, cpu, dtype=dtype)[-1]
    exact = {name: target[name].double() for name in residual.names}
    rounding = rounding_of(seen, exact, unit_scale(seen), local)
    precision = rounding, autocast_of(seen, exact)
    parts = (torch.hypot(*(one[name] for one in precision)).flatten() for name in residual.names)
    return residual, torch.cat(list(parts)).clamp(min=1e-300)


def _pixel_std(seen: Observation, images: Tensor) -> Tensor:
    """By which each pixel in [0, 1] is divided before the model reads it."""
    std = torch.tensor(seen.std, dtype=torch.float64)
    return std.repeat_interleave(images[0, 0].numel()).repeat(len(images))
