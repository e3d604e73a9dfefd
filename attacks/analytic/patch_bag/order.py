"""Where each patch belongs: the order under which the model gives what was shared, looked for by exchanges."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

Cost = Callable[[Int[Tensor, "orders places"]], Float[Tensor, " orders"]]
"""Squared relative error of orders, which name the token of each place."""

EXACT = 1e-3
"""Relative error of an order below which no other is looked for."""


def find_order(
    starts: Sequence[Int[Tensor, " places"]], tokens: int, cost: Cost
) -> tuple[Int[Tensor, " places"], float]:
    """The order with the least error, and that error.

    Steepest descent from each start: of all exchanges of two places and, where there are more places than tokens, of
    all replacements, the best is taken until none is better.
    """
    best: tuple[Int[Tensor, " places"], float] | None = None
    for order in starts:
        now = float(cost(order[None])[0])
        while now > EXACT**2:
            moves = _moves(order, tokens)
            costs = cost(moves) if len(moves) else torch.zeros(0)
            if not len(moves) or not float(costs.min()) < now * (1.0 - 1e-9):
                break
            now, order = float(costs.min()), moves[int(costs.argmin())]
        if best is None or now**0.5 < best[1]:
            best = order, now**0.5
        if best[1] < EXACT:
            break
    assert best is not None
    return best


def runner_up(order: Int[Tensor, " places"], tokens: int, cost: Cost) -> float:
    """The error of the best order that is one exchange or replacement away; 1 without any."""
    moves = _moves(order, tokens)
    return float(cost(moves).min().sqrt()) if len(moves) else 1.0


def twins(order: Int[Tensor, " places"], grid: tuple[int, int]) -> Int[Tensor, "twins places"]:
    """The other orders with the same neighbours: mirrored, turned, with axes exchanged, or shifted around.

    No exchange of two places leads from one to another.
    """
    whole = order.view(grid)
    moved = [whole.flip(0), whole.flip(1), whole.flip((0, 1))]
    if grid[0] == grid[1]:
        moved += [whole.T, whole.rot90(1), whole.rot90(3), whole.flip((0, 1)).T]
    moved += [whole.roll(by, axis) for axis in (0, 1) for by in range(1, grid[axis])]
    found = torch.stack([one.flatten() for one in moved]).unique(dim=0)
    others: Tensor = found[(found != order).any(dim=1)]
    return others


def find_among_twins(
    order: Int[Tensor, " places"], tokens: int, grid: tuple[int, int], cost: Cost
) -> tuple[Int[Tensor, " places"], float, float]:
    """The order or a better twin of it, its error, and that of the next best, an exchange or a twin away."""
    candidates = torch.cat([order[None], twins(order, grid)])
    order, error = find_order([candidates[int(cost(candidates).argmin())]], tokens, cost)
    others = twins(order, grid)
    alike = float(cost(others).min().sqrt()) if len(others) else 1.0
    return order, error, min(alike, runner_up(order, tokens, cost))


def order_of_pairs(costs: Float[Tensor, "tokens tokens places places"]) -> Int[Tensor, " places"]:
    """The assignment of tokens i, m to places n, k with a small sum of costs[i, m, n, k]; the order of its places.

    Every token at every place is an anchor once: the others go where they fit it best. Of these the least sum is taken,
    and improved by exchanges.
    """
    from scipy.optimize import linear_sum_assignment

    count = len(costs)
    rows = torch.arange(count)
    alone = costs[rows, rows][:, rows, rows]
    best: tuple[float, Int[Tensor, " tokens"]] | None = None
    for anchor in range(count):
        for place in range(count):
            fit = costs[anchor, :, place] + costs[:, anchor, :, place] + alone
            fit[anchor], fit[:, place] = fit.max() + 1.0, fit.max() + 1.0
            fit[anchor, place] = -1.0
            places = torch.as_tensor(linear_sum_assignment(fit.cpu().numpy())[1])
            total = _sum(costs, places)
            if best is None or total < best[0]:
                best = total, places
    assert best is not None
    order = torch.empty_like(best[1])
    order[best[1]] = rows
    return order


def _sum(costs: Float[Tensor, "tokens tokens places places"], places: Int[Tensor, " tokens"]) -> float:
    rows = torch.arange(len(places))
    return float(costs[rows[:, None], rows, places[:, None], places].sum())


def _moves(order: Int[Tensor, " places"], tokens: int) -> Int[Tensor, "moves places"]:
    places = len(order)
    first, second = torch.triu_indices(places, places, offset=1)
    keep = order[first] != order[second]
    first, second = first[keep], second[keep]
    swapped = order.repeat(len(first), 1)
    rows = torch.arange(len(first))
    swapped[rows, first], swapped[rows, second] = order[second], order[first]
    if tokens == places:
        return swapped
    put = order.repeat(places * tokens, 1)
    rows = torch.arange(places * tokens)
    put[rows, rows // tokens] = rows % tokens
    return torch.cat([swapped, put[(put != order).any(dim=1)]])
