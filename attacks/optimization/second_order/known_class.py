"""What public images tell of one whose class is known."""

from dataclasses import replace

from attacks.optimization.problem import Problem
from attacks.optimization.second_order.warm_start.ensemble import FEWEST
from attacks.optimization.second_order.warm_start.many_images import MOST_PIXELS
from fedsim.bounds.public_prior import PublicPrior
from fedsim.public_images import PublicImages


def of_its_class(problem: Problem) -> Problem | None:
    """The same with the public images of its class alone, and a prior of them; None where there are too few.

    None too for a batch, and for images that are too large for it.
    """
    observation, labels = problem.observation, problem.labels
    held = observation.public_images
    if held is None or held.labels is None or observation.image_prior is None:
        return None
    if labels is None or labels.is_floating_point() or problem.count > 1:
        return None
    label = int(labels[0])
    own = held.labels == label
    if int(own.sum()) < FEWEST or held.pixels[0].numel() > MOST_PIXELS:
        return None
    prior = PublicPrior.of_class(held.images(), held.labels, label)
    public = PublicImages(held.pixels[own], held.labels[own])
    return replace(problem, observation=replace(observation, image_prior=prior, public_images=public))
