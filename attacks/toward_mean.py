"""Between an attack's image and the mean of public ones, what explains the update best."""

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attacks.base import Reconstruction
from attacks.optimization.parametrisation import Pixels
from attacks.optimization.problem import clips_whole, known_labels, local_updates, make_problem, shared_update
from attacks.optimization.second_order.residual import LEFT_BY_ONE, LEFT_BY_SEVERAL, Residual, make_residuals
from attacks.positions import of_images
from fedsim import effects
from fedsim.bounds.gaussian_prior import GaussianPrior, ImagePrior
from fedsim.errors import NotApplicable
from fedsim.models.random_drops import random_drops
from fedsim.observation import Observation

SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.85, 1.0)
"""Of what the attack found, the rest being the mean."""
NEARLY_NOTHING = 1e-6
"""Of ‖r‖² at the mean, which an image leaves that explains the update: no other point of the line is tried."""
WEIGHED = (
    effects.AddsNoise,
    effects.AddsPositions,
    effects.AddsRegression,
    effects.Clips,
    effects.MasksPositions,
    effects.Quantises,
    effects.Sparsifies,
    effects.SumsClients,
    effects.TransformsImages,
    effects.Withholds,
)
"""Effects whose part in an update is simulated, or has a size that is known."""


def drawn_to_mean(observation: Observation, result: Reconstruction) -> Reconstruction:
    """The likeliest point between the mean of public images and the result.

    Behind noise under its size and a Gaussian of images, else by how much of the update is explained: what comes of
    equations that do not hold, such as those of one image for a batch, explains little and is drawn far. The result
    itself where it is certified or an image of it solves its equations, and where the client's computation cannot be
    simulated: behind dropout, say.
    """
    if result.images is None or not _can_be_weighed(observation):
        return result
    if result.certificate.status == "certified" or result.solves_equations or not bool(result.images.isfinite().all()):
        return result
    prior: ImagePrior = observation.image_prior or GaussianPrior()
    images = result.images.detach().double().cpu()
    try:
        residual = _residual(observation, prior, result.labels)
    except NotApplicable:
        return result
    centre = prior.centre(tuple(images.shape))
    each = observation.num_images

    def cost(share: float) -> float:
        return float(residual(_batch(observation, centre + share * (images - centre), each)).square().sum())

    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        at_mean, at_result = cost(0.0), cost(1.0)
        if residual.before is None and at_result <= NEARLY_NOTHING * at_mean:
            return result
        costs = [at_mean, *(cost(share) for share in SHARES[1:-1]), at_result]
    if not all(map(math.isfinite, costs)):
        return result
    best = min(range(len(costs)), key=lambda index: costs[index])
    left = LEFT_BY_ONE if each == 1 else LEFT_BY_SEVERAL
    share = SHARES[best]
    if residual.before is None and costs[best] > left * costs[0]:
        share *= (1.0 - costs[best] / costs[0]) ** 2  # a choice: the square held every cell of the matrix
    return replace(result, images=(centre + share * (images - centre)).to(result.images)) if share < 1.0 else result


def _batch(observation: Observation, images: Tensor, count: int) -> Tensor:
    """The unknowns of as many images as are behind the update; one picture for all stands for each."""
    whole = images if len(images) == count else images[:1].expand(count, -1, -1, -1)
    return observation.normalised(whole).flatten()


def _can_be_weighed(observation: Observation) -> bool:
    """Whether each defense's part is known, no number is rounded by a step of its own, and no unit is dropped."""
    if observation.protocol.training_mode and random_drops(observation.build_model()):
        return False
    return all(isinstance(effect, WEIGHED) and not _hides(effect, observation) for effect in observation.effects)


def _hides(effect: effects.Effect, observation: Observation) -> bool:
    """Whether it rounds each number by a step of its own, or scales parts of the update by factors that do not show."""
    if isinstance(effect, effects.Quantises):
        return effect.per == "coordinate"
    return isinstance(effect, effects.Clips) and effect.per != "step" and not clips_whole(effect, observation)


def _residual(observation: Observation, prior: ImagePrior, labels: Tensor | None) -> Residual:
    cpu = torch.device("cpu")
    local = local_updates("auto", observation)
    if labels is None or labels.is_floating_point() or len(labels) != observation.num_images:
        labels = known_labels("auto", observation, torch.Generator().manual_seed(0))
    assert labels is not None
    target = of_images(observation, shared_update(observation, local, cpu))
    problem = make_problem(observation, target, labels.cpu(), Pixels(), {}, cpu)
    by_norm, *weighed = make_residuals(problem, local, prior, labels.cpu(), cpu)
    return weighed[-1] if weighed and weighed[-1].before is not None else by_norm
