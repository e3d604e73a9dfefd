"""What the gradient of a classifier's bias says of one image: the errors of its logits, and so the logits."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attacks.noise import noise_of
from attacks.optimization.matching.local_steps import unit_scale
from attacks.optimization.problem import Problem
from attacks.optimization.second_order.errors import rounding_of
from fedsim.effects import Sparsifies

WEIGHT = 0.1
"""Of a row: an error of one unit of a logit counts as a tenth of a tensor."""
LEAST = 1e-9
"""Probability, below which none is told from zero."""
UNSURE = 10.0
"""A row counts half, where its probability may be off by one part in so many."""


@dataclass(frozen=True)
class LogitErrors:
    """δ = ∂L/∂z of one image's logits z: the gradient of the classifier's bias.

    A search whose loss is Σ_c δ_c z_c, with δ as it was shared, meets gradients of the client's own size wherever it
    stands. With the loss itself they are as large as the model is wrong there, which on a trained model is far more.

    Classes whose errors were pruned share what the others leave of a probability of one, as the model there divides it:
    exact at the client's image too, and with every class pruned the client's own loss.

    Attributes:
        error: δ, zero where pruned.
        wanted: the label, smoothed as the client does.
        kept: classes whose error was sent.
        log_probs: of the kept classes, then of all others together; but for one number for all these are the logits.
        weights: of their rows, less where δ is not known to the digit.
    """

    error: Float[Tensor, " classes"]
    wanted: Float[Tensor, " classes"]
    kept: Bool[Tensor, " classes"]
    log_probs: Float[Tensor, " known"]
    weights: Float[Tensor, " known"]

    @classmethod
    def of(cls, problem: Problem, local: str) -> "LogitErrors | None":
        """None where the bias is not shared, or not of one image of one class. `KnownLogits` asks for one gradient."""
        observation, labels = problem.observation, problem.labels
        biases = observation.roles.head_biases
        if labels is None or labels.is_floating_point() or problem.count > 1:
            return None
        if len(biases) != 1 or biases[0] not in problem.target:
            return None
        target, scale = (
            {name: tensor.double() for name, tensor in problem.target.items()},
            unit_scale(observation),
        )
        error = target[biases[0]]
        smoothing = observation.protocol.label_smoothing
        wanted = F.one_hot(labels, len(error))[0].to(error) * (1.0 - smoothing) + smoothing / len(error)
        std, noise = rounding_of(observation, target, scale, local)[biases[0]], noise_of(observation, target, scale)
        std = std if noise is None else torch.hypot(std, noise[biases[0]])
        kept = torch.ones_like(error, dtype=torch.bool) if observation.effect(Sparsifies) is None else error != 0
        probs, std = (error + wanted)[kept], std.expand_as(error)[kept]
        if not bool(kept.all()):
            probs, std = torch.cat([probs, 1.0 - probs.sum()[None]]), torch.cat([std, std.norm()[None]])
        probs = probs.clamp(min=LEAST)
        weights = WEIGHT / (1.0 + (UNSURE * std / probs).square())
        return cls(error, wanted, kept, probs.log(), weights)

    def to(self, dtype: torch.dtype) -> "LogitErrors":
        error, wanted, log_probs, weights = (
            tensor.to(dtype) for tensor in (self.error, self.wanted, self.log_probs, self.weights)
        )
        return LogitErrors(error, wanted, self.kept, log_probs, weights)

    def loss(self, scores: Float[Tensor, "1 classes"]) -> Float[Tensor, ""]:
        """Its gradient by weights is that of the client's loss wherever the logits are the client's."""
        sent = (scores[0] * self.error).sum()
        if bool(self.kept.all()):
            return sent
        others, left = scores[0, ~self.kept], self.log_probs[-1].exp()
        return sent + left * others.logsumexp(0) - (others * self.wanted[~self.kept]).sum()

    def rows(self, scores: Float[Tensor, "1 classes"]) -> Float[Tensor, " known"]:
        """How far the logits are from the client's."""
        known = scores[0, self.kept]
        if not bool(self.kept.all()):
            known = torch.cat([known, scores[0, ~self.kept].logsumexp(0)[None]])
        off = known - self.log_probs
        shares = self.weights / self.weights.sum().clamp(min=torch.finfo(off.dtype).tiny)
        found: Tensor = self.weights * (off - (shares * off).sum())
        return found
