"""Where no gradient tells the order of patches: what public images say of where each belongs."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.analytic.linear.patches import patchify, unpatchify
from fedsim.bounds.gaussian_prior import GaussianPrior, ImagePrior
from fedsim.observation import Observation

RIDGE = 1e-4
"""Variance of a pixel that the prior does not know: what was found has errors."""
ROUNDS = 200
"""Of Sinkhorn's scaling: its rate is that of the least certain place."""


def expected_places(
    patches: Float[Tensor, "n pixels"],
    means: Float[Tensor, "n pixels"],
    covariances: Iterable[Float[Tensor, "pixels pixels"]],
) -> Float[Tensor, "n n"]:
    """About P(place n holds patch p), one row a place: Sinkhorn's scaling of the Gaussian likelihoods.

    Exact where places are certain or all alike; between, the entropic relaxation of the sum over all orders.
    """
    rows = []
    for mean, covariance in zip(means, covariances, strict=True):
        factor = torch.linalg.cholesky(covariance)
        whitened = torch.linalg.solve_triangular(factor, (patches - mean).T, upper=False)
        rows.append(-0.5 * whitened.square().sum(dim=0) - factor.diagonal().log().sum())
    likelihood = torch.stack(rows)
    for _ in range(ROUNDS):
        likelihood = likelihood - likelihood.logsumexp(dim=0, keepdim=True)
        likelihood = likelihood - likelihood.logsumexp(dim=1, keepdim=True)
    found: Tensor = likelihood.exp()
    return found


def expected_image(observation: Observation, image: Float[Tensor, "1 c h w"]) -> Float[Tensor, "1 c h w"]:
    """The mean, over the orders that public images make likely, of one image of these patches."""
    grid, patch = observation.roles.grid, observation.roles.patch
    shape = tuple(image.shape[1:])
    if grid is None or patch is None or (grid[0] * patch[0], grid[1] * patch[1]) != shape[1:]:
        return image
    prior: ImagePrior = observation.image_prior or GaussianPrior()
    means = patchify(prior.centre((1, *shape)), patch)
    rows, columns = ([slice(n * p, (n + 1) * p) for n in range(g)] for g, p in zip(grid, patch, strict=True))
    ridge = RIDGE * torch.eye(means.shape[1], dtype=torch.float64)
    covariances = (prior.covariance(shape, row, column) + ridge for row in rows for column in columns)
    patches = patchify(image.double().cpu(), patch)
    return unpatchify(expected_places(patches, means, covariances) @ patches, grid, patch).to(image)
