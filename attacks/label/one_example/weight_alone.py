"""The label of one example from the gradient of the head's weight, where that of its bias tells nothing.

∂L/∂W = (p - y) hᵀ has rank one: its rows are multiples of h, and with a hard label all but the label's have one sign.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.analytic.rgap.inversion import read_head
from attacks.label.head.gradient import head_is_exact, rounding, shared, single_head
from fedsim.effects import AddsNoise, Unpublished
from fedsim.errors import NotApplicable
from fedsim.observation import Observation

CONSISTENT = 2e-3
"""Residual of a reading of the head up to which it may be the example's."""
NEARLY = 0.99
"""Of the longest row. The label's is as long as all others together, up to rounding."""


def label_by_weight(observation: Observation) -> tuple[int, str]:
    """The label, and why it may be another; that is empty where none other explains the gradient.

    Of hard labels and three classes or more `row_apart` tells, whatever sign the features have and whatever scaled the
    gradient; behind noise a row may stand apart by chance. Smoothed labels take the head's own softmax (`read_head`),
    so a gradient that nothing scaled; of two classes it mostly leaves both. Else the longest row.

    Raises:
        NotApplicable: no head, a gradient that was withheld, is zero or is not finite, labels smoothed away.
    """
    smoothing = observation.protocol.label_smoothing
    if smoothing >= 1.0:
        raise NotApplicable("label_smoothing=1 leaves nothing of the labels in the gradient")
    weight_grad = shared(observation, "weight")
    if not bool(weight_grad.any()):
        raise NotApplicable("a gradient of zero tells no label")
    longest, apart = row_apart(weight_grad, rounding(observation))
    by_chance = any(isinstance(effect, AddsNoise | Unpublished) for effect in observation.effects)
    if apart and not smoothing and not by_chance:
        return longest, ""
    doubt = head_is_exact(observation)
    if doubt or observation.protocol.steps > 1 or len(observation.roles.head_weights) > 1:
        return longest, doubt or "no softmax of the head's is known to agree with its weight's gradient"
    weight, bias = single_head(observation)
    read = [one for one in read_head(weight, bias, weight_grad, None, smoothing) if one.residual <= CONSISTENT]
    if not read:
        return longest, "no softmax agrees with the head weight's gradient"
    labels = sorted({one.label for one in read})
    return read[0].label, f"classes {labels} each explain the head weight's gradient" if len(labels) > 1 else ""


def row_apart(weight_grad: Float[Tensor, "classes features"], eps: float) -> tuple[int, bool]:
    """The row whose sign along ∂L/∂W's direction no other row has, and whether there is one; else the longest row.

    Args:
        eps: relative to the longest row; shorter ones have no sign.
    """
    direction = torch.linalg.svd(weight_grad.double(), full_matrices=False).U[:, 0]
    size = direction.abs()
    sides = [(sign * direction > eps * size.max()).nonzero().flatten().tolist() for sign in (1.0, -1.0)]
    alone = [side[0] for side in sides if len(side) == 1]
    if len(alone) == 1 and float(size[alone[0]]) >= NEARLY * float(size.max()):
        return alone[0], True
    return int(size.argmax()), False
