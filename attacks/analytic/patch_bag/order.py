"""Where each patch belongs: under the right order the first attention gives what its projection was found to read."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

Read = Callable[[Int[Tensor, "orders places"]], Float[Tensor, "orders places inner"]]
"""What the attention's projection reads at each place, under orders that name the token of each place."""

CHUNK = 256

EXACT = 1e-3
"""Relative error of an order below which no other is looked for."""


def find_order(
    outputs: Float[Tensor, "tokens inner"], starts: Sequence[Int[Tensor, " places"]], read: Read
) -> tuple[Int[Tensor, " places"], float]:
    """The order with the least error, and that error relative to the spread of the outputs.

    Steepest descent from each start: of all exchanges of two places and, where there are more places than tokens, of
    all replacements, the best is taken until none is better.
    """
    scale = _scale(outputs, len(starts[0]))
    best: tuple[Int[Tensor, " places"], float] | None = None
    for order in starts:
        cost = float(_costs(outputs, order[None], read)[0])
        while cost > EXACT**2 * scale:
            moves = _moves(order, len(outputs))
            costs = _costs(outputs, moves, read)
            if not len(moves) or not float(costs.min()) < cost * (1.0 - 1e-9):
                break
            cost, order = float(costs.min()), moves[int(costs.argmin())]
        error = (cost / scale) ** 0.5
        if best is None or error < best[1]:
            best = order, error
        if best[1] < EXACT:
            break
    assert best is not None
    return best


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


def runner_up(outputs: Float[Tensor, "tokens inner"], order: Int[Tensor, " places"], read: Read) -> float:
    """The error of the best order that is one exchange or replacement away, as `find_order` has it; 1 without any."""
    moves = _moves(order, len(outputs))
    if not len(moves):
        return 1.0
    return float((_costs(outputs, moves, read).min() / _scale(outputs, len(order))).sqrt())


def _sum(costs: Float[Tensor, "tokens tokens places places"], places: Int[Tensor, " tokens"]) -> float:
    rows = torch.arange(len(places))
    return float(costs[rows[:, None], rows, places[:, None], places].sum())


def _scale(outputs: Float[Tensor, "tokens inner"], places: int) -> float:
    spread = float((outputs - outputs.mean(dim=0)).square().sum()) * places / len(outputs)
    return max(spread, torch.finfo(outputs.dtype).tiny)


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
    return torch.cat([swapped, put])


def _costs(
    outputs: Float[Tensor, "tokens inner"], orders: Int[Tensor, "orders places"], read: Read
) -> Float[Tensor, " orders"]:
    each = [(read(some) - outputs[some]).square().sum(dim=(1, 2)) for some in orders.split(CHUNK)]
    return torch.cat(each) if each else outputs.new_zeros(0)
