"""Labels with a certificate: the only possible counts for which features exist that explain the head's gradient."""

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.base import Attack, Certificate, Needs, Reconstruction
from attacks.label.counts.residual import CountCertificate, certify_counts
from attacks.label.head.gradient import bias_rounding, head_is_exact, rounding, shared, single_head
from attacks.label.rules.basic import prior_counts
from fedsim.errors import ConfigError, NotApplicable, require
from fedsim.observation import Observation

MAX_BATCH_SIZE = 32
"""Features of more examples are solved for on request only: time grows as the sixth power of their number."""


class CertifiedLabels(Attack):
    """The only label counts that explain the head's gradient, or the likeliest, uncertified.

    Args:
        max_candidates: count vectors to try; where more are possible none is certified.
        max_batch_size: larger batches are refused: the solver's unknowns grow as B², its time as B⁶.
    """

    recovers = "labels"

    def __init__(self, max_candidates: int = 64, max_batch_size: int = 16) -> None:
        if max_candidates < 1:
            raise ConfigError("attack.labels_certified.max_candidates", max_candidates, "at least 1 count vector")
        require("attack.labels_certified.max_batch_size", max_batch_size, max_batch_size >= 1, "at least 1")
        self.max_candidates = max_candidates
        self.needs = Needs(max_batch_size=max_batch_size, auxiliary=True)

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Raises NotApplicable as `features_of` does."""
        return as_reconstruction(features_of(observation, device, rng, self.max_candidates, self.needs.max_batch_size))


def features_of(
    observation: Observation,
    device: torch.device,
    rng: torch.Generator,
    max_candidates: int = 64,
    max_batch_size: int | None = MAX_BATCH_SIZE,
) -> CountCertificate:
    """Labels, certified where the shared gradient allows no others, and the head's input for each, to `feature_error`.

    Uncertified are those nearest to the estimate, with the reason; also where the gradient cannot be trusted
    (`head_is_exact`), whatever it seems to say. Solved on the CPU whatever `device` is: the systems are small. Results
    are on `device`.

    Raises:
        NotApplicable: several steps, several heads or none, a batch of B > min(C - 1, D) or larger than
            `max_batch_size`, a withheld gradient.
    """
    protocol = observation.protocol
    if protocol.steps > 1:
        raise NotApplicable(f"{protocol.steps} local steps: the equations hold for one")
    weight, bias = single_head(observation)
    weight_grad, bias_grad = shared(observation, "weight"), shared(observation, "bias")
    if protocol.label_smoothing >= 1.0:
        raise NotApplicable("label_smoothing=1 leaves nothing of the labels in the gradient")
    total = observation.num_images
    limit = min(len(weight) - 1, weight.shape[1])
    if total > limit:
        raise NotApplicable(f"{total} examples: counts of at most {limit} can be certified (classes - 1, features)")
    if max_batch_size is not None and total > max_batch_size:
        raise NotApplicable(f"{total} examples: their features are solved for in batches of at most {max_batch_size}")
    found = certify_counts(
        weight,
        bias,
        weight_grad,
        bias_grad,
        estimated_counts(observation, bias_grad, total),
        total,
        protocol.label_smoothing,
        max_candidates,
        eps=rounding(observation),
        bias_rounding=bias_rounding(observation),
        rng=rng,
    )
    doubt = head_is_exact(observation)
    if found.certified and doubt:
        found = replace(found, certified=False, reason=doubt)
    moved = {name: getattr(found, name).to(device) for name in ("counts", "labels", "features")}
    return replace(found, **moved)


def estimated_counts(
    observation: Observation, bias_grad: Float[Tensor, "classes"], total: int
) -> Float[Tensor, "classes"]:
    """B (p̂ - ∂L/∂b): p̂ of auxiliary images where there are any, else uniform."""
    probs = observation.auxiliary_probs
    if probs is None:
        probs = torch.full_like(bias_grad, 1.0 / len(bias_grad))
    return prior_counts(bias_grad, probs.cpu(), total, observation.protocol.label_smoothing)


def as_reconstruction(found: CountCertificate) -> Reconstruction:
    """Labels with the certificate in the attack's own terms."""
    values = {
        "residual": found.residual,
        "possible": float(found.possible),
        "tried": float(found.tried),
        "tolerance": found.tolerance,
        "condition": found.condition,
        "feature_error": found.feature_error,
    }
    if math.isfinite(found.next):
        values["next"] = found.next
    status = Certificate("certified" if found.certified else "uncertified", found.reason, values)
    return Reconstruction(labels=found.labels, certificate=status)
