"""The label of one example, and what certifies it."""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attacks.label.head.gradient import decays, head_is_exact, shared, sign_rounding, single_head, tells
from attacks.label.one_example.weight_alone import label_by_weight
from attacks.label.rules.basic import bias_sign
from attacks.result import Certificate, Reconstruction
from fedsim.errors import NotApplicable
from fedsim.observation import Observation

MAX_SUM = 1e-4
"""Σ_c ∂L/∂b[c] = 0 for any batch; rounding leaves 1e-7 of Σ_c |∂L/∂b[c]| in float32."""
MAX_MISFIT, MIN_NEXT = 1e-3, 0.1
"""Sines, nearly: up to which a label explains the gradient, and from which every other label does not."""
MAX_REPLAY = 0.03
"""Relative: |p_y - 1| is over 0.7 ‖p - y‖, so that less cannot make another class the only negative one."""


def label_of_one(observation: Observation) -> Reconstruction:
    """The label of an update that one example made, certified where the head's gradient allows no other.

    Every class but the label's has p_c - ε/C in the bias's gradient, so that only the label's can be below -ε/C, after
    any steps that all count positively. It is while p_y < 1 - ε: always with hard labels. From a model that is surer
    than its smoothed labels the bias's gradient could be any class's; the weight's tells (`errors_of_labels`), where it
    was shared. Where the bias's was not shared or is zero, the weight's names the label uncertified: `label_by_weight`.

    Raises:
        NotApplicable: no head, withheld gradients, a gradient of zero, labels smoothed away.
    """
    smoothing = observation.protocol.label_smoothing
    if smoothing >= 1.0:
        raise NotApplicable("label_smoothing=1 leaves nothing of the labels in the gradient")
    if not tells(observation, "bias"):
        label, doubt = label_by_weight(observation)
        return _named(label, doubt or "by the sign of one row of the head weight's gradient alone", {})
    bias_grad = shared(observation, "bias")
    below = bias_sign(bias_grad, smoothing, sign_rounding(observation))
    values = {"negatives": float(len(below)), "sum": relative_sum(bias_grad)}
    if len(below) == 1:
        result = _named(int(below), "one class alone has a gradient that only the label's can be", values, True)
    elif len(below) == 0 and smoothing > 0 and bool(bias_grad.any()):
        result = _surer_than_its_label(observation, bias_grad, values)
    else:
        reason = f"{len(below)} classes have a gradient that only a label's can be: one was to be expected"
        result = _named(int(bias_grad.argmin()), reason, values)
    assert result.labels is not None
    doubt = _turned(observation, values["sum"]) or _unlike_one_example(observation, int(result.labels), values)
    if not result.certificate.certified or not doubt:
        return result
    return replace(result, certificate=replace(result.certificate, status="uncertified", reason=doubt))


def _turned(observation: Observation, relative: float) -> str:
    """Why signs in the gradient may not be those of p - y; empty where they are."""
    protocol = observation.protocol
    if relative > MAX_SUM:
        return f"the head bias's gradient sums to {relative:.2g} of its size, not to zero: a perturbed gradient"
    if protocol.steps > 1 and decays(observation):
        return f"weight decay moved the weights between {protocol.steps} local steps: it may have turned a sign"
    if protocol.steps > 1 and min(protocol.step_factors(), default=0.0) < 0.0:
        return "a local step counts negatively in the update: it turns the signs of its gradient"
    return ""


def _unlike_one_example(observation: Observation, label: int, values: dict[str, float]) -> str:
    """Why the head's gradient may not be that of one example with this label; empty where it is.

    After one step the head is replayed from the feature that ∂L/∂W = ∂L/∂b hᵀ gives: softmax(W h + b) - y must point
    along ∂L/∂b, and be it where nothing may have scaled it. Two classes leave one direction: it tells nothing.
    """
    untrusted = head_is_exact(observation) or _not_finite(observation)
    readable = len(observation.roles.head_weights) == 1 and _weight_is_shared(observation)
    if observation.protocol.steps > 1 or not readable:
        return untrusted
    weight, bias = single_head(observation)
    error = shared(observation, "bias").double()
    features, left = head_input(shared(observation, "weight").double(), error)
    again = errors_of_labels(weight @ features + bias, observation.protocol.label_smoothing)[label]
    if untrusted:
        again = again * (error.norm() / again.norm().clamp(min=1e-300))
    values["misfit"] = max(left, float((again - error).norm() / error.norm().clamp(min=1e-300)))
    if not values["misfit"] <= MAX_REPLAY:
        return f"the head replayed from its feature misses its gradient by {values['misfit']:.2g}"
    return untrusted if len(error) == 2 else ""


def _weight_is_shared(observation: Observation) -> bool:
    gradient = observation.gradient.get(observation.roles.head_weights[0])
    return gradient is not None and bool(gradient.isfinite().all())


def _not_finite(observation: Observation) -> str:
    for name in observation.roles.head_weights:
        gradient = observation.gradient.get(name)
        if gradient is not None and not bool(gradient.isfinite().all()):
            return f"{name}'s gradient is not finite: that it is the head's own cannot be tested"
    return ""


def single_label(observation: Observation) -> Int[Tensor, "1"] | None:
    """`label_of_one` for attacks on one picture: its label, certified or not.

    None where it refuses, or where the weight alone leaves the label open.
    """
    try:
        if not tells(observation, "bias") and label_by_weight(observation)[1]:
            return None
        return label_of_one(observation).labels
    except NotApplicable:
        return None


def head_input(
    weight_grad: Float[Tensor, "classes features"], bias_grad: Float[Tensor, "classes"]
) -> tuple[Float[Tensor, "features"], float]:
    """What the head read of one example, h of ∂L/∂W = ∂L/∂b hᵀ, whatever both were scaled by; and ‖∂L/∂W - ∂L/∂b hᵀ‖
    over ‖∂L/∂W‖."""
    features = bias_grad @ weight_grad / bias_grad.square().sum()
    left = (weight_grad - torch.outer(bias_grad, features)).norm() / weight_grad.norm().clamp(min=1e-300)
    return features, float(left)


def errors_of_labels(logits: Float[Tensor, "classes"], label_smoothing: float = 0.0) -> Float[Tensor, "labels classes"]:
    """p - y for each label that an example of these logits could have."""
    classes = len(logits)
    labels = (1.0 - label_smoothing) * torch.eye(classes).to(logits) + label_smoothing / classes
    return logits.softmax(dim=0) - labels


def relative_sum(bias_grad: Float[Tensor, "classes"]) -> float:
    """|Σ_c ∂L/∂b[c]| / Σ_c |∂L/∂b[c]|."""
    return float(bias_grad.sum().abs() / bias_grad.abs().sum().clamp(min=1e-300))


def _surer_than_its_label(
    observation: Observation, bias_grad: Float[Tensor, "classes"], values: dict[str, float]
) -> Reconstruction:
    """No class is below -ε/C: p_y >= 1 - ε, or a gradient that was scaled down.

    The label is the one whose p - y has the direction of ∂L/∂b. Two that both have it, as with two classes, differ in
    length alone, which clipping changes: the nearer one is named, and neither certified.
    """
    try:
        weight, bias = single_head(observation)
        weight_grad = shared(observation, "weight")
    except NotApplicable as refusal:
        reason = f"the bias's gradient alone does not tell a smoothed label that the model is surer of: {refusal}"
        return _named(int(bias_grad.argmax()), reason, values)
    error = bias_grad.double()
    features, left = head_input(weight_grad.double(), error)
    errors = errors_of_labels(weight @ features + bias, observation.protocol.label_smoothing)
    units = errors / errors.norm(dim=1, keepdim=True).clamp(min=1e-300)
    off = (units - error / error.norm()).norm(dim=1)
    best, following = off.topk(2, largest=False).values.tolist()
    values = {**values, "misfit": max(best, left), "next": following}
    fits = off <= max(best, MAX_MISFIT)
    label = int(torch.where(fits, (errors - error).norm(dim=1), torch.inf).argmin())
    if values["misfit"] <= MAX_MISFIT and following >= MIN_NEXT:
        return _named(label, "one label alone explains the head's gradient", values, True)
    reason = f"the nearest label is off the head's gradient by {values['misfit']:.2g}, the next by {following:.2g}"
    return _named(label, reason, values)


def _named(label: int, reason: str, values: dict[str, float], certified: bool = False) -> Reconstruction:
    certificate = Certificate("certified" if certified else "uncertified", reason, values)
    return Reconstruction(labels=torch.tensor([label]), certificate=certificate)
