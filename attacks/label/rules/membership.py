"""Which classes were in the batch, from the column space of the head weight's gradient: RLG (Dang et al. 2021)."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

SLACK = 1e-5
INFEASIBLE = 2
"""Of SciPy's linear programmes."""


def rlg(
    weight_grad: Float[Tensor, "classes features"], batch_size: int, eps: float | None = None
) -> Int[Tensor, "labels"]:
    """{c : some vector of ∂L/∂W's column space is negative at c alone}, one linear programme a class.

    The columns p_k - y_k of Rᵀ span that space where the features are independent, and each is negative at its label
    alone: no class that was there is missed. A class that was not may be named where B is not far below C. Of labels
    smoothed by ε the columns are negative wherever p_kc < ε/C: then classes that were there may be missed too.

    Args:
        eps: relative rounding of the gradient as it was shared; None takes that of its dtype.

    Raises:
        ValueError: the gradient is zero, the features are too narrow to be independent, or the space holds every vector
            of sum zero, so that each class would pass.
    """
    if not weight_grad.any():
        raise ValueError("a gradient of zero tells no label")
    if (width := weight_grad.shape[1]) < batch_size:
        raise ValueError(f"features of width {width} depend on each other: classes that were there would be missed")
    eps = torch.finfo(weight_grad.dtype).eps if eps is None else eps
    left, values, _ = torch.linalg.svd(weight_grad.detach().double().cpu(), full_matrices=False)
    rank = int((values[:batch_size] > 100 * eps * values[0]).sum())
    if rank >= len(left) - 1:
        raise ValueError(f"a gradient of rank {rank} for {len(left)} classes separates each of them")
    return negative_alone(left[:, :rank], SLACK)


def negative_alone(
    space: Float[Tensor, "classes rank"], slack: float, sure: Int[Tensor, "some"] | None = None
) -> Int[Tensor, "labels"]:
    """The classes at which some vector of the columns' span is negative, and at no other by more than `slack` of it.

    Args:
        sure: classes that need not be asked.
    """
    found, known = space.detach().double().cpu().numpy(), set() if sure is None else set(sure.tolist())
    return torch.tensor([c for c in range(len(found)) if c in known or _separable(found, c, slack)], dtype=torch.int64)


def _separable(space: Float[np.ndarray, "classes rank"], label: int, slack: float) -> bool:
    """Is there r with space[label]·r <= -1 and space[j]·r >= -slack for every other j? Unless there is none."""
    from scipy.optimize import linprog

    above = -space
    above[label] = space[label]
    limits = np.full(len(space), slack)
    limits[label] = -1.0
    found = linprog(np.zeros(space.shape[1]), A_ub=above, b_ub=limits, bounds=(None, None), method="highs")
    return bool(found.status != INFEASIBLE)
