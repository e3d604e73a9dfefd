"""Which classes were in the batch, from the signs that Adam's steps leave of the gradient of the head's bias.

Every step is minus a mean of gradients with positive weights, divided by something positive. Hence a class whose bias
rose had a negative gradient in some step, which with hard labels only a class of that step's batch can have.
"""

import math

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attacks.label.head.gradient import head_is_exact
from attacks.label.rules.basic import largest_remainder
from attacks.noise import noise_of
from attacks.result import Certificate, Reconstruction
from fedsim.effects import AddsNoise
from fedsim.errors import NotApplicable
from fedsim.observation import Observation

ADAM = ("adam", "adamw")
FEW = 0.05
"""Of clients with labels as those of public images, that as few classes or fewer would rise for."""
DRAWS = 1000
"""Of labels, that `FEW` is told by."""
SIGMAS = 4.0
"""Of noise that a defense publishes, that a class must rise by."""


def steps_are_signs(observation: Observation) -> bool:
    """Whether what was shared is a change of weights by Adam or AdamW."""
    return observation.update.kind != "gradient" and observation.protocol.optimizer in ADAM


def labels_of_signs(observation: Observation, total: int, count: bool = True) -> Reconstruction:
    """The classes whose bias rose; with `count` all labels of the update, by `likely_counts`.

    Certified where that leaves no choice: with hard labels, as many classes as examples, one mostly. With smoothed
    labels an absent class may rise too, as p_c - ε/C may be negative. Behind published noise a class must rise by
    `SIGMAS` of it; where none does, those that rose at all are a guess.

    Raises:
        NotApplicable: no head's bias was shared, or weight decay or a proximal term is part of what Adam divides.
    """
    change, rounding = _change(observation)
    rose = change > rounding + SIGMAS * _noise(observation)
    if not bool(rose.any()):
        rose = change > rounding
    number = int(rose.sum())
    if number == 0:
        raise NotApplicable("no class's bias rose: the steps do not tell a label")
    labels = rose.nonzero().flatten()
    if count and number < total:
        counts = likely_counts(change, rose, total, _shares(observation, len(change)))
        labels = torch.arange(len(counts)).repeat_interleave(counts)
    elif count:
        labels = change.topk(total).indices.sort().values
    doubt = _doubt(observation, number, total)
    reason = doubt or "these biases alone rose, which only a label's can"
    certificate = Certificate("uncertified" if doubt else "certified", reason, {"rose": float(number)})
    return Reconstruction(labels=labels, certificate=certificate)


def likely_counts(
    change: Float[Tensor, "classes"], rose: Bool[Tensor, "classes"], total: int, shares: Float[Tensor, "classes"]
) -> Int[Tensor, "classes"]:
    """How often each class was there: one of each that rose, the rest by what public images and the steps say.

    Of B labels drawn with shares q, class c has B·q_c, and a standard deviation √(B·q_c(1 - q_c)) more or less. So far
    its change moves it, relative to the largest of all. Where fewer classes rose than nearly all such draws would let
    rise, the client has other labels than the public images: those classes alone, alike.

    Args:
        change: of the head's bias.
        shares: of the classes among public images, positive.
    """
    expected = total * shares
    drawn = torch.from_numpy(np.random.default_rng(0).multinomial(total, shares.numpy(), size=DRAWS))
    risen = (drawn > expected).sum(dim=1)
    if float((risen <= int(rose.sum())).double().mean()) < FEW:
        order = rose.nonzero().flatten()
        order = order[change[order].argsort(descending=True, stable=True)]
        return order.repeat(-(-total // len(order)))[:total].bincount(minlength=len(shares))
    moved = expected + (expected * (1.0 - shares)).sqrt() * change / change.abs().max()
    moved = moved.clamp(min=0.0)
    rest = total * moved / moved.sum() - rose.double()
    return rose.long() + largest_remainder(rest, total - int(rose.sum()))


def _shares(observation: Observation, classes: int) -> Float[Tensor, "classes"]:
    """Of the classes among labelled public images, each with one more image; without any all are alike."""
    held = observation.public_images
    known = torch.zeros(0, dtype=torch.long) if held is None or held.labels is None else held.labels
    counts = known.bincount(minlength=classes).double() + 1.0
    return counts / counts.sum()


def _doubt(observation: Observation, rose: int, total: int) -> str:
    if inexact := head_is_exact(observation):
        return inexact
    if observation.protocol.label_smoothing:
        return "smoothed labels: the bias of a class that was not there may rise too"
    if rose > total:
        return f"{rose} classes rose, more than the {total} examples: something else moved the head"
    return "the classes that rose were there; how often, and whether others were, is open" if rose < total else ""


def _noise(observation: Observation) -> float:
    """The standard deviation of what defenses add to the change of the head's bias, as far as they say so."""
    update, start, name = observation.update, observation.global_state, observation.roles.head_biases[0]
    floating = {n: tensor.double().cpu() for n, tensor in update.tensors.items() if tensor.is_floating_point()}
    if update.kind == "weights":
        floating = {n: tensor - start[n].double().cpu() for n, tensor in floating.items()}
    noise = noise_of(observation, floating, 1.0, of=lambda one: isinstance(one, AddsNoise) and one.on == "update")
    return 0.0 if noise is None else float(noise[name].max())


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
