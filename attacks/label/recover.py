"""Which classes were in the batch, from the gradient of the classifier."""

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.base import Attack, Certificate, Needs, Reconstruction
from attacks.label import rules
from fedsim.errors import ConfigError, NotApplicable, nearest
from fedsim.observation import Observation

RULES = ("auto", "idlg", "gradinversion", "bias_sign", "bias_corrected", "bias_prior")
MAX_SUM = 1e-4
"""Σ_c ∂L/∂b[c] = 0 for any batch; rounding leaves 1e-7 of Σ_c |∂L/∂b[c]| in float32."""


class RecoverLabels(Attack):
    """The multiset of labels, sorted, by one of the rules of `attacks.label.rules`.

    `auto` takes the exact rule for one example, `bias_prior` where the server has auxiliary pictures, and
    `bias_corrected` otherwise. Labels alone: no pictures. A clipped gradient's scale is unknown: it leaves the
    exact rule for one example and `bias_sign` as they are, and misleads the rules that count.

    Args:
        rule: one of `RULES`.
    """

    def __init__(self, rule: str = "auto") -> None:
        if rule not in RULES:
            raise ConfigError("attack.labels.rule", rule, f"one of {', '.join(RULES)}.{nearest(str(rule), RULES)}")
        self.rule = rule
        self.needs = Needs(auxiliary=rule in ("auto", "bias_prior"))

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Raises NotApplicable without a head, where its gradient is withheld, and without auxiliary pictures."""
        protocol = observation.protocol
        total = max(1, min(protocol.batch_size * max(1, protocol.steps), observation.update.num_examples))
        if self.rule in ("idlg", "gradinversion"):
            return _from_weight(_shared(observation, "weight"), self.rule, total)
        bias_grad = _shared(observation, "bias")
        smoothing = protocol.label_smoothing
        if smoothing >= 1.0:
            raise NotApplicable("label_smoothing=1 leaves nothing of the labels in the gradient")
        if self.rule == "auto" and total == 1:
            return _single(bias_grad, smoothing)
        values = {"sum": _relative_sum(bias_grad)}
        probs = observation.auxiliary_probs
        if self.rule == "bias_prior" and probs is None:
            raise NotApplicable("bias_prior needs auxiliary pictures that the server may run its model on")
        if self.rule == "bias_sign":
            labels = rules.bias_sign(bias_grad, smoothing)
            return _uncertified(labels, "the set of classes without their counts", values)
        if self.rule == "bias_prior" or (self.rule == "auto" and probs is not None):
            assert probs is not None
            counts = rules.prior_counts(bias_grad, probs.cpu(), total, smoothing)
            values["rounding"] = float((counts - counts.round()).abs().max())
            labels = rules.bias_prior(bias_grad, probs.cpu(), total, smoothing)
            return _uncertified(labels, "the batch's mean softmax is taken from auxiliary pictures", values)
        labels = rules.bias_corrected(bias_grad, total, smoothing)
        return _uncertified(labels, "the batch's mean softmax is taken to be uniform", values)


def _shared(observation: Observation, part: str) -> Float[Tensor, "..."]:
    """The gradient of the head's weight or bias, on the CPU.

    Raises:
        NotApplicable: there is none.
    """
    roles = observation.roles
    if not roles.head_weights:
        raise NotApplicable("the model has no linear head")
    names = roles.head_weights if part == "weight" else roles.head_biases
    if not names:
        raise NotApplicable(f"the head has no {part}")
    gradient = rules.head_gradient(observation.gradient, names)
    if gradient is None:
        by = observation.update.withheld.get(names[0], "the client")
        raise NotApplicable(f"{names[0]}'s gradient is withheld by {by}")
    if not bool(gradient.isfinite().all()):
        raise NotApplicable(f"{names[0]}'s gradient is not finite")
    return gradient.cpu()


def _from_weight(weight_grad: Float[Tensor, "classes features"], rule: str, total: int) -> Reconstruction:
    if rule == "idlg":
        if total > 1:
            raise NotApplicable(f"iDLG names one label: the update was computed from {total} examples")
        labels, reason = rules.idlg(weight_grad), "right where the features' sum is positive"
    else:
        if total > len(weight_grad):
            raise NotApplicable(f"{total} examples of {len(weight_grad)} classes: GradInversion names no class twice")
        labels, reason = rules.gradinversion(weight_grad, total), "right for non-negative features, no class twice"
    return _uncertified(labels, reason, {})


def _single(bias_grad: Float[Tensor, "classes"], smoothing: float) -> Reconstruction:
    """One example: p_c - ε/C for every class but its own, so that only its own can be below -ε/C."""
    labels = bias_grad.argmin().reshape(1)
    negatives = len(rules.bias_sign(bias_grad, smoothing))
    values = {"negatives": float(negatives), "sum": _relative_sum(bias_grad)}
    if not values["sum"] <= MAX_SUM:
        reason = f"the head bias's gradient sums to {values['sum']:.2g} of its size, not to zero: a perturbed gradient"
        return _uncertified(labels, reason, values)
    if negatives != 1:
        reason = f"{negatives} classes have a gradient that only a label's can be: one was to be expected"
        return _uncertified(labels, reason, values)
    certificate = Certificate("certified", "one class alone has a gradient that only the label's can be", values)
    return Reconstruction(labels=labels, certificate=certificate)


def _relative_sum(bias_grad: Float[Tensor, "classes"]) -> float:
    return float(bias_grad.sum().abs() / bias_grad.abs().sum().clamp(min=1e-300))


def _uncertified(labels: Tensor, reason: str, values: dict[str, float]) -> Reconstruction:
    return Reconstruction(labels=labels, certificate=Certificate("uncertified", reason, values))
