"""Labels by the moments of public images, of one gradient or of several steps on one batch."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from attacks.label.counts.possible import least_counts
from attacks.label.head.gradient import bias_rounding, shared, single_head
from attacks.label.public_images.drift import drifted_counts
from attacks.label.public_images.moments import ClassMoments, class_moments, fit_counts, noise_covariance, shares
from attacks.label.rules.basic import largest_remainder, prior_counts
from attacks.label.rules.reference import read_by_head
from attacks.noise import noise_of_gradient
from attacks.result import Certificate, Reconstruction
from fedsim.errors import NotApplicable
from fedsim.observation import Observation

MAX_MISFIT = 2.5
"""For `auto`: batches like the public images have 0.2 to 2.5; a model that is sure of nearly all, 10 and more."""
SIGMAS = 4.0
"""Of published noise in the bias's gradient, that p̄ >= 0 bounds no count by."""
LEAST_IMAGES = 8
"""Public images a class, below which its moments tell nothing."""


@dataclass(frozen=True)
class Public:
    """What the model makes of public images.

    Attributes:
        labels: given, or the model's own.
    """

    images: Float[Tensor, "n c h w"]
    features: Float[Tensor, "n features"]
    probs: Float[Tensor, "n classes"]
    labels: Int[Tensor, "n"]
    moments: ClassMoments
    said: str


def likely(
    observation: Observation,
    bias_grad: Float[Tensor, "classes"],
    total: int,
    rng: torch.Generator,
    device: torch.device,
) -> Reconstruction | None:
    """`from_public_images`; None where that refuses, the batch is unlike them, or BatchNorm mixes its examples."""
    if observation.public_images is None or examples_mix(observation):
        return None
    try:
        found = from_public_images(observation, bias_grad, total, rng, device)
    except NotApplicable:
        return None
    return found if found.certificate.values["misfit"] <= MAX_MISFIT else None


def from_public_images(
    observation: Observation,
    bias_grad: Float[Tensor, "classes"],
    total: int,
    rng: torch.Generator,
    device: torch.device,
) -> Reconstruction:
    """The likeliest labels.

    Raises:
        NotApplicable: too few public images, none, several heads, or local steps that `replay` does not simulate.
    """
    protocol = observation.protocol
    weight_grad = shared(observation, "weight")
    public = _public(observation, rng, device)
    noise = _noise(observation)
    slack = bias_rounding(observation) + SIGMAS * noise[1] ** 0.5
    least = least_counts(bias_grad, total, protocol.label_smoothing, slack)
    if int(least.sum()) > total:  # something else is in the gradient: its bounds are no batch's
        least = torch.zeros_like(least)
    added = noise_covariance(public.moments, noise, total)
    if protocol.steps == 1:
        fit = fit_counts(public.moments, weight_grad, bias_grad, least, total, added)
    else:
        missing = (public.labels.bincount(minlength=len(bias_grad)) == 0).nonzero().flatten().tolist()
        if missing:  # by predictions alone: of a model that is not trained they are of one class or two
            raise NotApplicable(f"no public image is of class {missing[0]} with {public.said}: no client is simulated")
        start = prior_counts(bias_grad, public.probs.mean(dim=0), total, protocol.label_smoothing)
        first = largest_remainder(start, total)

        def drift(chosen: Int[Tensor, "batch"]) -> tuple[Tensor, Tensor]:
            return _drift(observation, public, chosen)

        both = weight_grad, bias_grad
        fit = drifted_counts(public.moments, both, least, first, public.labels, drift, rng, added)
    labels = torch.repeat_interleave(torch.arange(len(fit.counts)), fit.counts)
    reason = f"the batch is taken to be like public images with {public.said}"
    return Reconstruction(labels=labels, certificate=Certificate("uncertified", reason, {"misfit": fit.misfit}))


def examples_mix(observation: Observation) -> bool:
    """Whether BatchNorm reads the whole batch: it shifts all features together, which no class's scatter shows."""
    layers = observation.build_model().modules()
    return observation.protocol.training_mode and any(isinstance(layer, _BatchNorm) for layer in layers)


def _public(observation: Observation, rng: torch.Generator, device: torch.device) -> Public:
    held = observation.public_images
    if held is None:
        raise NotApplicable("class_moments needs public images that the server may run its model on")
    weight, bias = single_head(observation)
    if len(held) < LEAST_IMAGES * len(bias):
        raise NotApplicable(f"{len(held)} public images of {len(bias)} classes: {LEAST_IMAGES} a class are needed")
    read = read_by_head(observation, held.images(), rng, device)
    belongs = read.probs if held.labels is None else F.one_hot(held.labels, len(bias)).double()
    try:
        moments = class_moments(weight, bias, read.features, belongs, observation.protocol.label_smoothing)
    except ValueError as error:
        raise NotApplicable(f"public images: {error}") from error
    said = "the model's own predictions for labels" if held.labels is None else "their labels"
    return Public(held.images(), read.features, read.probs, belongs.argmax(dim=1), moments, said)


def _drift(observation: Observation, public: Public, chosen: Int[Tensor, "batch"]) -> tuple[Tensor, Tensor]:
    """What the client's steps on these images make of the head's gradient, beyond the first."""
    update = observation.replay(public.images[chosen], public.labels[chosen])
    if update is None:
        raise NotApplicable("the client's local steps cannot be simulated")
    seen = replace(observation, update=update)
    weight, bias = single_head(observation)
    first = torch.zeros(len(bias), weight.shape[1] + 1, dtype=torch.float64)
    for label in public.labels[chosen].unique().tolist():
        own = public.features[chosen][public.labels[chosen] == label]
        each = shares(weight, bias, own, label, observation.protocol.label_smoothing)
        first += each.sum(dim=0).view_as(first) / len(chosen)
    return shared(seen, "weight") - first[:, :-1], shared(seen, "bias") - first[:, -1]


def _noise(observation: Observation) -> tuple[float, float]:
    """Variance of what defenses add to each number of the weight's and of the bias's gradient."""
    added = noise_of_gradient(observation)
    if added is None:
        return 0.0, 0.0
    roles = observation.roles
    return float(added[roles.head_weights[0]].square().mean()), float(added[roles.head_biases[0]].square().mean())
