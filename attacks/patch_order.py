"""Where no gradient tells the order of patches: what public images say of where each belongs."""

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.analytic.linear.patches import patchify, unpatchify
from fedsim.bounds.gaussian_prior import GaussianPrior, ImagePrior
from fedsim.observation import Observation

DRAWS = 2_000
"""Of the prior, from which a place's covariance is taken."""
RIDGE = 1e-4
ROUNDS = 200
"""Of Sinkhorn's scaling: its rate is that of the least certain place."""


def expected_places(
    patches: Float[Tensor, "n pixels"], means: Float[Tensor, "n pixels"], covariances: Float[Tensor, "n pixels pixels"]
) -> Float[Tensor, "n n"]:
    """About P(place n holds patch p), one row a place: Sinkhorn's scaling of the Gaussian likelihoods.

    Exact where places are certain or all alike; between, the entropic relaxation of the sum over all orders.
    """
    apart = patches[None] - means[:, None]
    factor = torch.linalg.cholesky(covariances)
    whitened = torch.linalg.solve_triangular(factor, apart.transpose(1, 2), upper=False)
    volume = 2.0 * factor.diagonal(dim1=1, dim2=2).log().sum(dim=1)
    likelihood: Tensor = -0.5 * (whitened.square().sum(dim=1) + volume[:, None])
    for _ in range(ROUNDS):
        likelihood = likelihood - likelihood.logsumexp(dim=0, keepdim=True)
        likelihood = likelihood - likelihood.logsumexp(dim=1, keepdim=True)
    found: Tensor = likelihood.exp()
    return found


def expected_image(observation: Observation, image: Float[Tensor, "1 c h w"]) -> Float[Tensor, "1 c h w"]:
    """The mean, over the orders that public images make likely, of one image of these patches."""
    grid, patch = observation.roles.grid, observation.roles.patch
    if grid is None or patch is None:
        return image
    prior: ImagePrior = observation.image_prior or GaussianPrior()
    shape = tuple(image.shape[1:])
    mean = patchify(prior.centre((1, *shape)), patch)
    draws = prior.draw((DRAWS, *shape), torch.Generator().manual_seed(0))
    apart = torch.stack([patchify(one[None], patch) for one in draws]) - mean
    covariances = torch.einsum("knp,knq->npq", apart, apart) / DRAWS + RIDGE * torch.eye(mean.shape[1]).double()
    patches = patchify(image.double().cpu(), patch)
    return unpatchify(expected_places(patches, mean, covariances) @ patches, grid, patch).to(image)
