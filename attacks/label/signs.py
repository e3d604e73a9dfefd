"""Which classes were in the batch, from the signs that Adam's steps leave of the gradient of the head's bias.

Every step is minus a mean of gradients with positive weights, divided by something positive. Hence a class whose bias
rose had a negative gradient in some step, which with hard labels only a class of that step's batch can have.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.label.head import head_is_exact
from attacks.result import Certificate, Reconstruction
from fedsim.errors import NotApplicable
from fedsim.observation import Observation

ADAM = ("adam", "adamw")


def steps_are_signs(observation: Observation) -> bool:
    """Whether what was shared is a change of weights by Adam or AdamW."""
    return observation.update.kind != "gradient" and observation.protocol.optimizer in ADAM


def labels_of_signs(observation: Observation, total: int, repeat: bool = True) -> Reconstruction:
    """The classes whose bias rose; with `repeat` again from the first on until there are `total`.

    Certified where that leaves no choice: with hard labels, as many classes as examples, one mostly. With smoothed
    labels an absent class may rise too, as p_c - ε/C may be negative.

    Raises:
        NotApplicable: no head's bias was shared, or weight decay or a proximal term is part of what Adam divides.
    """
    change, rounding = _change(observation)
    rose = (change > rounding).nonzero().flatten()
    values = {"rose": float(len(rose))}
    if len(rose) == 0:
        raise NotApplicable("no class's bias rose: the steps do not tell a label")
    labels = rose
    if repeat:
        order = rose[change[rose].argsort(descending=True, stable=True)]
        labels = order.repeat(-(-total // len(order)))[:total].sort().values
    doubt = _doubt(observation, len(rose), total)
    reason = doubt or "these biases alone rose, which only a label's can"
    certificate = Certificate("uncertified" if doubt else "certified", reason, values)
    return Reconstruction(labels=labels, certificate=certificate)


def _doubt(observation: Observation, rose: int, total: int) -> str:
    if observation.protocol.label_smoothing:
        return "smoothed labels: the bias of a class that was not there may rise too"
    if rose > total:
        return f"{rose} classes rose, more than the {total} examples: something else moved the head"
    if rose < total:
        return "the classes that rose were there; how often, and whether others were, is open"
    return head_is_exact(observation)


def _change(observation: Observation) -> tuple[Float[Tensor, "classes"], Float[Tensor, "classes"]]:
    """What the steps did to the head's bias, decoupled weight decay taken off, and how far rounding moved it."""
    protocol, names = observation.protocol, observation.roles.head_biases
    if not names:
        raise NotApplicable("the head has no bias")
    if names[0] not in observation.update.tensors:
        raise NotApplicable(observation.why_absent(names[0]))
    shared = observation.update.tensors[names[0]]
    start = observation.global_state[names[0]].double().cpu()
    steps = len(protocol.lrs)
    if protocol.optimizer == "adam" and protocol.decay_of(names[0]) and (steps > 1 or bool(start.any())):
        raise NotApplicable("weight decay is a part of Adam's gradients: their signs may be its own")
    if protocol.proximal_mu and steps > 1:
        raise NotApplicable("a proximal term is a part of Adam's gradients: their signs may be its own")
    end = shared.double().cpu() + (start if observation.update.kind == "delta" else 0.0)
    if not bool(end.isfinite().all()):
        raise NotApplicable(f"{names[0]}'s change is not finite")
    decay = protocol.decay_of(names[0]) if protocol.optimizer == "adamw" else 0.0
    if steps > 1 and any(lr * decay > 1.0 for lr in protocol.lrs):
        raise NotApplicable("weight decay turns the sign of what earlier steps moved: lr times it is above 1")
    eps = float(torch.finfo(shared.dtype).eps)
    rounding = (steps + 1) * eps * torch.maximum(start.abs(), end.abs())
    return end - start * math.prod(1.0 - lr * decay for lr in protocol.lrs), rounding
