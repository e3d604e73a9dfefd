"""Which tokens belong to one picture: those whose attention over each other gives what the block went on with."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Attend = Callable[[Tensor, Tensor], Tensor]
"""What tokens [n,D] read when they attend to one picture's tokens [m,D]; both as in z, outputs [n,D]."""

ROUNDS = 20


def group(
    tokens: Float[Tensor, "tokens batch width"],
    outputs: Float[Tensor, "tokens batch width"],
    attend: Attend,
    seeds: int,
    known: Bool[Tensor, "tokens batch"] | None = None,
) -> tuple[Int[Tensor, "tokens batch"], float]:
    """order[n, b]: which solution of position n is picture b's; and the relative error of the attention under it.

    As k-means, with "attend to the group's members" in place of the mean. The start puts to each token of a seed
    position, one of which most is known, those with the closest outputs (nearly uniform attention gives all tokens of a
    picture the same).

    Args:
        known: solutions that were found; others are nobody's, and fit as well in one picture as in another.
    """
    known = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device) if known is None else known
    best: tuple[Int[Tensor, "tokens batch"], float] | None = None
    found = known.sum(dim=1)
    fullest = (found == found.max()).nonzero()[:, 0]
    if len(fullest) < seeds:
        fullest = found.argsort(descending=True, stable=True)[: min(seeds, int((found > 0).sum()))]
    for place in torch.linspace(0, len(fullest) - 1, min(seeds, len(fullest))).long():
        seed = fullest[place]
        apart = (outputs[:, :, None] - outputs[seed]).square().sum(dim=3)
        typical = apart[known[:, :, None] & known[seed]].mean()  # of what the seed lacks
        order = _assign(torch.where(known[:, :, None], torch.where(known[seed], apart, typical), 0.0))
        for _ in range(ROUNDS):
            costs = _costs(tokens, outputs, attend, order, known)
            changed = _assign(costs)
            if torch.equal(changed, order):
                break
            order = changed
        cost = float(_costs(tokens, outputs, attend, order, known).gather(1, order[:, None])[:, 0].sum())
        error = (cost / float(outputs[known].square().sum())) ** 0.5
        if best is None or error < best[1]:
            best = (order, error)
    assert best is not None
    return best


def _costs(
    tokens: Float[Tensor, "tokens batch width"],
    outputs: Float[Tensor, "tokens batch width"],
    attend: Attend,
    order: Int[Tensor, "tokens batch"],
    known: Bool[Tensor, "tokens batch"],
) -> Float[Tensor, "tokens batch batch"]:
    """[n, i, b]: how far the output of solution i of position n is from what it would read in picture b."""
    count, batch = order.shape
    rows = torch.arange(count, device=order.device)
    costs = []
    for image in range(batch):
        own = order[:, image]
        members = tokens[rows, own][known[rows, own]]
        read = attend(tokens.flatten(0, 1), members).unflatten(0, (count, batch))
        costs.append((outputs - read).square().sum(dim=2))
    return torch.where(known[:, :, None], torch.stack(costs, dim=2), 0.0)


def _assign(costs: Float[Tensor, "tokens batch batch"]) -> Int[Tensor, "tokens batch"]:
    """For each position the cheapest one-to-one assignment: order[n, b] = i."""
    from scipy.optimize import linear_sum_assignment

    return torch.stack([torch.as_tensor(linear_sum_assignment(cost.T.cpu().numpy())[1]) for cost in costs]).to(
        costs.device
    )
