"""What public images tell of one whose class is known."""

from dataclasses import replace

from attacks.optimization.parametrisation import PixelSpace
from attacks.optimization.problem import Problem
from attacks.optimization.second_order.warm_start.ensemble import FEWEST
from fedsim.bounds.public_prior import PublicPrior
from fedsim.effects import AddsNoise, Quantises
from fedsim.public_images import PublicImages


def of_its_class(problem: Problem) -> Problem | None:
    """A problem with the public images of its label's class alone, and a prior of them; None where there are too few.

    None too without noise, for a batch and several rounds, and from another attack's image: there a prior adds little.
    """
    observation, labels = problem.observation, problem.labels
    if not any(isinstance(effect, AddsNoise | Quantises) for effect in observation.effects):
        return None
    if problem.count > 1 or problem.later or problem.start is not None or not isinstance(problem.space, PixelSpace):
        return None
    held = observation.public_images
    if held is None or held.labels is None or held.pixels.shape[1:] != observation.image_shape:
        return None
    if labels is None or labels.is_floating_point() or observation.image_prior is None:
        return None
    label = int(labels[0])
    own = held.labels == label
    if int(own.sum()) < FEWEST:
        return None
    prior = PublicPrior.of_class(held.images(), held.labels, label)
    public = PublicImages(held.pixels[own], held.labels[own])
    return replace(problem, observation=replace(observation, image_prior=prior, public_images=public))
