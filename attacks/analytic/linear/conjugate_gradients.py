"""Positive linear systems that are known by their products alone."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor


def conjugate_gradients(
    product: Callable[[Tensor], Tensor],
    right: Float[Tensor, " n"],
    preconditioner: Callable[[Tensor], Tensor],
    tolerance: float,
    most: int,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"], int]:
    """The solution of a positive system, what it leaves of the right-hand side, and the iterations.

    Where rounding hides that the system is positive, it ends before.

    Args:
        tolerance: of the right-hand side, in the preconditioner's norm.
    """
    solution, left = torch.zeros_like(right), right
    better = preconditioner(left)
    direction, size = better, float(left @ better)
    enough = tolerance**2 * size
    iterations = 0
    while size > enough and iterations < most:
        image = product(direction)
        curvature = float(direction @ image)
        if curvature <= 0.0:  # rounding
            break
        length = size / curvature
        solution, left = solution + length * direction, left - length * image
        better = preconditioner(left)
        size, before = float(left @ better), size
        direction = better + (size / before) * direction
        iterations += 1
    return solution, left, iterations
