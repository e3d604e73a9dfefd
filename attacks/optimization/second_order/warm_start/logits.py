"""What the gradients of a classifier say of each image: the errors of its logits, and so the logits."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attacks.label.head.errors import head_errors
from attacks.label.head.gradient import head_is_exact, rounding
from attacks.noise import noise_of
from attacks.optimization.matching.local_steps import unit_scale
from attacks.optimization.problem import Problem
from attacks.optimization.second_order.residual.errors import rounding_of
from attacks.optimization.second_order.warm_start.ensemble import FEWEST
from attacks.victim import Victim
from fedsim.effects import Sparsifies
from fedsim.observation import Observation
from fedsim.update import State

WEIGHT = 0.1
"""Of a row: an error of one unit of a logit counts as a tenth of a tensor."""
LEAST = 1e-9
"""Probability, below which none is told from zero."""
UNLIKELY = 3.0
"""Standard deviations of χ², by which errors may be apart from those of public images of their class."""
UNSURE = 10.0
"""A row counts half, where its probability may be off by one part in so many."""


@dataclass(frozen=True)
class LogitErrors:
    """δ = ∂L/∂z of the logits z of each image, times their number.

    For one image that is the gradient of the classifier's bias. For a batch the gradients of its weight and bias tell
    the sum over images alone, and features that explain both settle the rest (`head_errors`).

    A search whose loss is Σ δ_bc z_bc / B, with δ as it was shared, or behind noise as public images make it likelier,
    meets gradients of the client's own size wherever it stands. With the loss itself they are as large as the model is
    wrong there, which on a trained model is far more.

    Classes whose errors were pruned share what the others leave of a probability of one, as the model there divides it:
    exact at the client's image too, and with every class pruned the client's own loss.

    Attributes:
        error: δ, zero where pruned.
        wanted: the labels, smoothed as the client does.
        kept: classes whose error was sent.
        log_probs: of the kept classes, then of all others together; but for one number an image these are the logits.
        weights: of their rows, less where δ is not known to the digit.
    """

    error: Float[Tensor, "batch classes"]
    wanted: Float[Tensor, "batch classes"]
    kept: Bool[Tensor, " classes"]
    log_probs: Float[Tensor, "batch known"]
    weights: Float[Tensor, "batch known"]

    @classmethod
    def of(cls, problem: Problem, local: str, victim: Victim | None = None) -> "LogitErrors | None":
        """None where they are not known, or labels are not classes. `KnownLogits` asks for one gradient.

        Args:
            victim: the client's computation, by which public images say what δ may be behind noise.
        """
        observation, labels = problem.observation, problem.labels
        biases = observation.roles.head_biases
        if labels is None or labels.is_floating_point() or len(biases) != 1 or biases[0] not in problem.target:
            return None
        target, scale = (
            {name: tensor.double() for name, tensor in problem.target.items()},
            unit_scale(observation),
        )
        found = (target[biases[0]][None], 0.0) if problem.count == 1 else _of_batch(observation, target, labels)
        if found is None:
            return None
        error, turned = found
        smoothing = observation.protocol.label_smoothing
        wanted = F.one_hot(labels, error.shape[1]).to(error) * (1.0 - smoothing) + smoothing / error.shape[1]
        std, noise = rounding_of(observation, target, scale, local)[biases[0]], noise_of(observation, target, scale)
        std = (problem.count * (std if noise is None else torch.hypot(std, noise[biases[0]]))).expand_as(error)
        std = torch.hypot(std, turned * error.norm(dim=1, keepdim=True))
        pruned = problem.count == 1 and observation.effect(Sparsifies) is not None
        kept = error[0] != 0 if pruned else torch.ones_like(error[0], dtype=torch.bool)
        if noise is not None and problem.count == 1 and not pruned and victim is not None:
            error, std = _with_public(observation, labels, error, std, wanted, victim)
        probs, std = (error + wanted)[:, kept], std[:, kept]
        if not bool(kept.all()):
            probs = torch.cat([probs, 1.0 - probs.sum(1, keepdim=True)], dim=1)
            std = torch.cat([std, std.norm(dim=1, keepdim=True)], dim=1)
        probs = probs.clamp(min=LEAST)
        weights = WEIGHT / (1.0 + (UNSURE * std / probs).square())
        return cls(error, wanted, kept, probs.log(), weights)

    def to(self, dtype: torch.dtype) -> "LogitErrors":
        error, wanted, log_probs, weights = (
            tensor.to(dtype) for tensor in (self.error, self.wanted, self.log_probs, self.weights)
        )
        return LogitErrors(error, wanted, self.kept, log_probs, weights)

    @property
    def doubts(self) -> Float[Tensor, " rows"]:
        """How far each row may be off, as δ is known."""
        relative = (WEIGHT / self.weights - 1.0).clamp(min=0.0).sqrt() / UNSURE
        return (self.weights * relative).flatten()

    def loss(self, scores: Float[Tensor, "batch classes"]) -> Float[Tensor, ""]:
        """Its gradient by weights is that of the client's loss wherever the logits are the client's."""
        sent = (scores * self.error).sum(1)
        if not bool(self.kept.all()):
            others, left = scores[:, ~self.kept], self.log_probs[:, -1].exp()
            sent = sent + left * others.logsumexp(1) - (others * self.wanted[:, ~self.kept]).sum(1)
        return sent.mean()

    def rows(self, scores: Float[Tensor, "batch classes"]) -> Float[Tensor, " rows"]:
        """How far the logits are from the client's."""
        known = scores[:, self.kept]
        if not bool(self.kept.all()):
            known = torch.cat([known, scores[:, ~self.kept].logsumexp(1, keepdim=True)], dim=1)
        off = known - self.log_probs
        shares = self.weights / self.weights.sum(1, keepdim=True).clamp(min=torch.finfo(off.dtype).tiny)
        return (self.weights * (off - (shares * off).sum(1, keepdim=True))).flatten()


def _with_public(
    observation: Observation, labels: Int[Tensor, "1"], error: Tensor, std: Tensor, wanted: Tensor, victim: Victim
) -> tuple[Tensor, Tensor]:
    """Errors of logits and their standard deviations, joined with those of public images of the class.

    Of a model that takes all images for much the same these say more than a bias behind noise does. As they were shared
    where the two are too far apart, since the image is unlike its class, and where the model saw other images.
    """
    held = observation.public_images
    if held is None or held.labels is None or held.pixels.shape[1:] != observation.image_shape:
        return error, std
    own = held.pixels[held.labels == labels.cpu()]
    if len(own) < FEWEST or not all(effect.keeps("images") for effect in observation.effects):
        return error, std
    weights = {**victim.fixed, **victim.params}
    images = observation.normalised(own / 255.0).to(error)
    with torch.no_grad():
        like = next(iter(victim.params.values()))
        each = torch.cat([victim.scores(weights, one[None].to(like)) for one in images])
    found = each.to(error).softmax(1) - wanted
    mean, variance = found.mean(0), found.var(0) * (1.0 + 1.0 / len(found))
    apart = float(((error - mean).square() / (variance + std.square())).sum())
    if apart > error.shape[1] + UNLIKELY * math.sqrt(2.0 * error.shape[1]):
        return error, std
    gain = variance / (variance + std.square())
    return mean + gain * (error - mean), gain.sqrt() * std


def _of_batch(
    observation: Observation, target: State, labels: Int[Tensor, " batch"]
) -> tuple[Float[Tensor, "batch classes"], float] | None:
    """See `head_errors`; None where the classifier's gradients are not those of one batch, too."""
    roles = observation.roles
    names = (*roles.head_weights, *roles.head_biases)
    if len(names) != 2 or names[0] not in target or head_is_exact(observation):
        return None
    weight, bias = (observation.global_state[name].double().cpu() for name in names)
    gradients, rng = (target[names[0]].cpu(), target[names[1]].cpu()), torch.Generator().manual_seed(0)
    smoothing = observation.protocol.label_smoothing
    found = head_errors((weight, bias), gradients, labels, smoothing, rounding(observation), rng)
    return None if found is None else (found[0].to(labels.device), found[1])
