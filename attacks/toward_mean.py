"""Between an attack's image and the mean of public ones, what explains the update best."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from itertools import pairwise, permutations

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attacks.base import Reconstruction
from attacks.certificate.assignments import MAX_ORDERS
from attacks.optimization.parametrisation import Pixels
from attacks.optimization.problem import (
    clips_whole,
    known_labels,
    local_updates,
    make_problem,
    make_update_map,
    shared_update,
)
from attacks.optimization.second_order.residual.residual import LEFT_BY_ONE, LEFT_BY_SEVERAL, Residual, make_residuals
from attacks.positions import of_images
from attacks.victim import make_victim
from fedsim import effects
from fedsim.bounds.gaussian_prior import GaussianPrior, ImagePrior
from fedsim.errors import NotApplicable
from fedsim.models.random_drops import random_drops
from fedsim.observation import Observation

SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.85, 1.0)
"""Of what the attack found, the rest being the mean."""
NEARLY_NOTHING = 1e-3
"""Of ‖r‖² at the mean, which an image leaves that explains the update: no other point of the line is tried. Were ‖r‖² a
parabola, its least would be within 3 % of the image. Of an update, what a solution may leave but for a factor."""
LEFT_BY_FACTOR = 0.1
"""Of the update, and of what is off without it, what a factor on all of the update may leave: else there is none."""
SAME_SIZE = 0.01
"""How far from 1 a factor must be to count."""
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
    simulated: behind dropout, say. Where the update is what the result gives but for a factor (another loss scale or
    learning rate than stated) its size counts for nothing, and `note` says so.
    """
    images = result.images
    if images is None or result.certificate.status == "certified" or not bool(images.isfinite().all()):
        return result
    if not _can_be_weighed(observation):
        return result
    try:
        if result.solves_equations:
            return _noted(result, _own_factor(observation, images, result.labels))
        prior: ImagePrior = observation.image_prior or GaussianPrior()
        residual = _residual(observation, prior, result.labels)
    except NotApplicable:
        return result
    images = images.detach().double().cpu()
    centre, count = prior.centre(tuple(images.shape)), observation.num_images
    images = _in_order(observation, images, result.labels, residual)
    line = _Line(lambda share: _batch(observation, centre + share * (images - centre), count), residual)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        result, share = _noted(result, line.factor), _likeliest(line, count)
    return replace(result, images=(centre + share * (images - centre)).to(result.images)) if share < 1.0 else result


def _noted(result: Reconstruction, factor: float) -> Reconstruction:
    if factor == 1.0:
        return result
    times = f"{factor:.0f}" if factor >= 1000.0 else f"{factor:.3g}"
    said = f"the shared update is about {times} times what the protocol as stated gives"
    return replace(result, note="; ".join(filter(None, [result.note, said])))


def _own_factor(observation: Observation, images: Tensor, labels: Tensor | None) -> float:
    """`_factor` of one image's gradient; 1 for several steps, too dear for a note alone, and behind a public clip.

    Raises:
        NotApplicable: no label is known, or the update is no gradient.
    """
    if observation.num_images > 1 or observation.protocol.steps > 1 or observation.effect(effects.Clips) is not None:
        return 1.0
    cpu = torch.device("cpu")
    target = of_images(observation, shared_update(observation, "gradient", cpu))
    victim = make_victim(observation, target, cpu, fused_attention=True)
    given = observation.normalised(images.detach().double().cpu()).to(next(iter(target.values())))
    found = make_update_map("gradient", victim, observation)({"images": given, "labels": _labels(observation, labels)})
    names = [name for name in target if name in found]
    ours, theirs = (torch.cat([state[name].detach().flatten() for name in names]) for state in (found, target))
    return _factor(ours, theirs, NEARLY_NOTHING)  # what solves the equations but for a factor leaves rounding


def _factor(found: Tensor, target: Tensor, left: float = LEFT_BY_FACTOR) -> float:
    """How many times `found` the target is; 1 where it is no multiple of it."""
    factor = float(found @ target) / max(float(found @ found), 1e-300)
    size, before, after = (float(one.square().sum()) for one in (target, found - target, factor * found - target))
    held = after <= left * min(size, before)
    return factor if held and factor > 0.0 and abs(factor - 1.0) > SAME_SIZE else 1.0


class _Line:
    """‖r‖² between the mean and an image, each point simulated once, but for a factor on the whole update."""

    def __init__(self, point: Callable[[float], Tensor], residual: Residual) -> None:
        self._point, self.residual = point, residual
        self._costs: dict[float, float] = {}

    @cached_property
    def factor(self) -> float:
        return _factor(self._image, self._target)

    def cost(self, share: float) -> float:
        if share not in self._costs:
            found = self._image if share == 1.0 else self._update(share)
            cost = (self.factor * found - self._target).square().sum()
            if self.residual.before is not None:
                cost = cost + self.residual.before(self._point(share)).square().sum()
            self._costs[share] = float(cost)
        return self._costs[share]

    @cached_property
    def _image(self) -> Tensor:
        return self._update(1.0)

    @cached_property
    def _target(self) -> Tensor:
        return self.residual.weights * self.residual.target

    def _update(self, share: float) -> Tensor:
        found = self.residual.shared(self._point(share))
        return self.residual.weights * torch.cat([tensor.flatten() for tensor in found])


def _in_order(observation: Observation, images: Tensor, labels: Tensor | None, residual: Residual) -> Tensor:
    """A batch's images at the places of the labels that were read off the update, where they came without any."""
    count = observation.num_images
    if labels is not None or len(images) != count or not 1 < math.factorial(count) <= MAX_ORDERS:
        return images

    def off(order: list[int]) -> float:
        found = residual.shared(_batch(observation, images[order], count))
        left = residual.weights * (torch.cat([tensor.flatten() for tensor in found]) - residual.target)
        return float(left.square().sum())

    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        return images[min(map(list, permutations(range(count))), key=off)]


def _likeliest(line: _Line, count: int) -> float:
    """The share of the image, downhill from the better end until the cost rises."""
    at_mean, at_image = line.cost(0.0), line.cost(1.0)
    if not (math.isfinite(at_mean) and math.isfinite(at_image)) or at_image <= NEARLY_NOTHING * at_mean:
        return 1.0
    way = SHARES[::-1] if at_image < at_mean else SHARES
    share = next((one for one, other in pairwise(way) if not line.cost(other) < line.cost(one)), way[-1])
    left = LEFT_BY_ONE if count == 1 else LEFT_BY_SEVERAL
    if line.residual.before is None and line.cost(share) > left * at_mean:
        share *= (1.0 - line.cost(share) / at_mean) ** 2  # a choice: the square held every cell of the matrix
    return share


def _batch(observation: Observation, images: Tensor, count: int) -> Tensor:
    """The unknowns of as many images as are behind the update; one picture for all stands for each."""
    whole = images if len(images) == count else images[:1].expand(count, -1, -1, -1)
    return observation.normalised(whole).flatten()


def _can_be_weighed(observation: Observation) -> bool:
    """Whether each defense's part is known, no number is rounded by a step of its own, and no unit is dropped.

    And whether the client's model is the server's: from round 2 on it is not where the client keeps what it trained.
    """
    if observation.finetune.keeps and observation.server_round > 1:
        return False
    if observation.protocol.training_mode and random_drops(observation.build_model()):
        return False
    return all(isinstance(effect, WEIGHED) and not _hides(effect, observation) for effect in observation.effects)


def _hides(effect: effects.Effect, observation: Observation) -> bool:
    """Whether it rounds each number by a step of its own, or scales parts of the update by factors that do not show.

    Or the client's model has tensors of its own, which the server does not know.
    """
    if isinstance(effect, effects.Quantises):
        return effect.per == "coordinate"
    if isinstance(effect, effects.Withholds):
        return effect.kept
    if not isinstance(effect, effects.Clips):
        return False
    return observation.summed > 1 or (effect.per != "step" and not clips_whole(effect, observation))


def _labels(observation: Observation, labels: Tensor | None) -> Tensor:
    if labels is None or labels.is_floating_point() or len(labels) != observation.num_images:
        labels = known_labels("auto", observation, torch.Generator().manual_seed(0))
    assert labels is not None
    return labels.cpu()


def _residual(observation: Observation, prior: ImagePrior, labels: Tensor | None) -> Residual:
    cpu = torch.device("cpu")
    local = local_updates("auto", observation)
    known = _labels(observation, labels)
    target = of_images(observation, shared_update(observation, local, cpu))
    problem = make_problem(observation, target, known, Pixels(), {}, cpu)
    by_norm, *weighed = make_residuals(problem, local, prior, known, cpu)
    return weighed[-1] if weighed and weighed[-1].before is not None else by_norm
