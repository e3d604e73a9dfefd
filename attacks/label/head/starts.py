"""Where the solver of a head's equations sets out from: examples that the model is not sure of, or is."""

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.label.head.system import HeadSystem, total_errors, unknowns_of

STARTS = ((0.0, 0.3), (0.9, 0.1), (0.0, 1.0), (0.5, 0.3))
"""In turn: how sure of a drawn class an example is taken to be, and how far apart the examples are set, relatively."""
LEAST_ERROR, MOST_ERROR = 1e-6, 0.9
"""Of an example that is taken for one of which the model is sure, and rightly."""
ELSEWHERE = 0.02
"""Of the mean error, what any other class is given of such an example's at least."""


def where_unsure(
    system: HeadSystem, targets: Float[Tensor, "problems batch classes"], starts: int, rng: torch.Generator
) -> Float[Tensor, "problems starts batch free"]:
    """As if every example had the batch's mean softmax, which counts and ∂L/∂b give, or in turn were surer of a class
    drawn from it, as a trained model is; then apart at random: examples of one class would begin as one and stay it.
    """
    problems, batch, _ = targets.shape
    mean_probs = (total_errors(system) / batch + targets.mean(dim=1)).clamp(min=1e-4)
    mean_probs = mean_probs / mean_probs.sum(dim=1, keepdim=True)
    kinds = [STARTS[number % len(STARTS)] for number in range(starts)] * problems
    sure, apart = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in zip(*kinds, strict=True))
    mean_probs, targets = (values.repeat_interleave(starts, dim=0) for values in (mean_probs, targets))
    drawn = torch.multinomial(mean_probs, batch, replacement=True, generator=rng)
    drawn = torch.nn.functional.one_hot(drawn, targets.shape[2])
    errors = (1.0 - sure) * mean_probs[:, None] + sure * drawn - targets
    free = unknowns_of(system, errors)
    size = free.norm(dim=2, keepdim=True).mean(dim=1, keepdim=True) / max(1, free.shape[2]) ** 0.5
    started: Tensor = free + apart * size * standard_normal(free, rng)
    return started.view(problems, starts, *free.shape[1:])


def where_sure(
    system: HeadSystem, targets: Float[Tensor, "problems batch classes"], starts: int, rng: torch.Generator
) -> Float[Tensor, "problems starts batch free"]:
    """As if the model were sure of each example's own label: its error is what ∂L/∂b tells of that class in all, and
    goes to the other classes as there; both but for factors drawn for each example.
    """
    problems, total = len(targets), total_errors(system)
    label = targets.argmax(dim=2).repeat_interleave(starts, dim=0)
    own = torch.nn.functional.one_hot(label, targets.shape[2]).double()
    each = (total.abs() / own.sum(dim=1).clamp(min=1.0)).gather(1, label).clamp(min=LEAST_ERROR)
    size = (each * standard_normal(each, rng).exp()).clamp(max=MOST_ERROR)
    others = (
        (total.clamp(min=0.0) + ELSEWHERE * total.abs().mean() + LEAST_ERROR)
        * standard_normal(own, rng).exp()
        * (1.0 - own)
    )
    errors = size[:, :, None] * (others / others.sum(dim=2, keepdim=True) - own)
    free = unknowns_of(system, errors)
    return free.view(problems, starts, *free.shape[1:])


def standard_normal(like: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=rng, dtype=torch.float64)
