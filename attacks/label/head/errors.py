"""The errors of the logits of each image of a batch, from the gradients of a linear classifier, for known labels."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attacks.label.head.solver import FIRST, LONG, ROUNDS_OF_ONE, number_of_starts, solve_rows
from attacks.label.head.system import head_system, joined

MAX_BATCH_SIZE = 16
"""Time grows as the sixth power of the number of images."""
CLEAN = 1e-3
"""Tolerance, in units of the gradient, above which errors are not taken for known."""
MANY = 16
"""Times the starts, at most, where none of the first found the errors: of trained models few do."""


def head_errors(
    weights: tuple[Float[Tensor, "classes features"], Float[Tensor, "classes"]],
    gradients: tuple[Float[Tensor, "classes features"], Float[Tensor, "classes"]],
    labels: Int[Tensor, "batch"],
    label_smoothing: float | int,
    eps: float,
    rng: torch.Generator,
) -> tuple[Float[Tensor, "batch classes"], float] | None:
    """p - y of each image, in the order of the labels; of those with one label in any order.

    The mean gradient gives them in sum alone. That they are the errors of features which the classifier reads settles
    them (`attacks.label.head.system`), for batches of fewer images than classes, `MAX_BATCH_SIZE` at most.

    Args:
        weights: weight and bias of the classifier.
        gradients: of the two, of the mean cross-entropy.
        eps: relative rounding of the gradients.
        rng: draws the starts of the solver.

    Returns:
        The errors, and how far the rounding of the gradients may have turned them, relatively, to first order. None
        where no features explain the gradients with these labels, or errors that depend on each other leave them open.
    """
    classes, width = weights[0].shape
    if len(labels) > min(classes - 1, width, MAX_BATCH_SIZE):
        return None
    system = head_system(joined(*weights), joined(*gradients), len(labels), eps)
    tolerance = system.tolerance(eps)
    if tolerance > CLEAN or len(system.basis) < len(labels):
        return None
    order, starts = labels.cpu()[None], number_of_starts(len(labels))
    many = starts * min(MANY, max(2, ROUNDS_OF_ONE // len(labels) ** 2))
    for effort in ((starts, FIRST), (many, LONG)):
        found = solve_rows(system, order, float(label_smoothing), *effort, 0.1 * tolerance, rng)
        if float(found.residual[0]) < tolerance:
            return found.errors[0], max(eps, system.outside) / system.smallest
    return None
