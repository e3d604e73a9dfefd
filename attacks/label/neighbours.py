"""Class counts near real-valued ones, the likeliest first."""

import heapq
from collections import Counter
from collections.abc import Iterator

from jaxtyping import Float, Int
from torch import Tensor

from attacks.label.rules import largest_remainder

Move = tuple[int, int]


def neighbours(
    counts: Float[Tensor, "classes"], batch_size: int, max_neighbours: int
) -> Iterator[Int[Tensor, "classes"]]:
    """`counts` rounded by largest remainder, then with one label moved to another class, then with two.

    Of the same number of moves, by increasing ‖n - counts‖². At most 1 + `max_neighbours` vectors, none twice.
    """
    counts = counts.double().cpu()
    rounded = largest_remainder(counts, batch_size)
    yield rounded
    moves = _moves(rounded, counts, max_neighbours)
    for _, move in moves:
        yield _moved(rounded, (move,))
    left = max_neighbours - len(moves)
    # Both moves of a pair may undo each other, or be one; what they change tells.
    seen = {_changes(()), *(_changes((move,)) for _, move in moves)}
    for pair in _pairs([cost for cost, _ in moves]):
        if left <= 0:
            return
        both = (moves[pair[0]][1], moves[pair[1]][1])
        changes = _changes(both)
        if changes not in seen and all(int(rounded[label]) + change >= 0 for label, change in changes):
            seen.add(changes)
            left -= 1
            yield _moved(rounded, both)


def _moves(rounded: Int[Tensor, "classes"], counts: Float[Tensor, "classes"], limit: int) -> list[tuple[float, Move]]:
    """At most `limit` (source, target), cheapest first: n_s - 1 and n_t + 1 cost 2 (1 - (n_s - n̂_s) + (n_t - n̂_t))."""
    excess = (rounded - counts).tolist()
    sources = [c for c, count in enumerate(rounded.tolist()) if count > 0]
    found = (
        (1.0 - excess[source] + excess[target], (source, target))
        for source in sources
        for target in range(len(excess))
        if target != source
    )
    return heapq.nsmallest(limit, found)


def _pairs(costs: list[float]) -> Iterator[tuple[int, int]]:
    """Index pairs i <= j by increasing costs[i] + costs[j]; costs are sorted."""
    if not costs:
        return
    heap = [(2.0 * costs[0], 0, 0)]
    while heap:
        _, first, second = heapq.heappop(heap)
        yield first, second
        if second + 1 < len(costs):
            heapq.heappush(heap, (costs[first] + costs[second + 1], first, second + 1))
        if first == second and first + 1 < len(costs):
            heapq.heappush(heap, (2.0 * costs[first + 1], first + 1, first + 1))


def _moved(rounded: Int[Tensor, "classes"], moves: tuple[Move, ...]) -> Int[Tensor, "classes"]:
    found = rounded.clone()
    for source, target in moves:
        found[source] -= 1
        found[target] += 1
    return found


def _changes(moves: tuple[Move, ...]) -> tuple[tuple[int, int], ...]:
    """(class, what it gains) where that is not zero."""
    gains: Counter[int] = Counter()
    for source, target in moves:
        gains[source] -= 1
        gains[target] += 1
    return tuple(sorted((label, gain) for label, gain in gains.items() if gain))
