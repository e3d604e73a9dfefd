"""Which labels were in which local batch, where only the client knows."""

import torch
from jaxtyping import Int
from torch import Tensor

MAX_ORDERS = 6
"""Orders of labels that are searched with, one whole search each."""
DRAWS = 200


def label_orders(labels: Int[Tensor, " images"], batch_size: int, rng: torch.Generator) -> list[Int[Tensor, " images"]]:
    """Orders that put other labels into the client's batches: the given one, then random ones, `MAX_ORDERS` at most.

    Args:
        batch_size: of one local step, which takes the next so many labels; within a step their order makes no
            difference.
    """
    found: dict[tuple[tuple[int, ...], ...], Tensor] = {}
    for draw in range(DRAWS):
        places = torch.randperm(len(labels), generator=rng) if draw else torch.arange(len(labels))
        order = labels[places.to(labels.device)]
        batches = tuple(tuple(sorted(batch.tolist())) for batch in order.split(batch_size))
        found.setdefault(batches, order)
        if len(found) == MAX_ORDERS:
            break
    return list(found.values())
