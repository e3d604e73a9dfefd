"""The order of the search, against a sort of everything."""

import itertools
import tracemalloc

import torch

from attacks.label.neighbours import neighbours
from attacks.label.rules import largest_remainder


def everything(estimate, batch):
    """All count vectors by (moves away, ‖n - n̂‖²)."""
    rounded = largest_remainder(estimate, batch)
    found = []
    for counts in itertools.product(range(batch + 1), repeat=len(estimate)):
        if sum(counts) == batch:
            counts = torch.tensor(counts)
            moves = int((counts - rounded).abs().sum()) // 2
            found.append((moves, float((counts - estimate).square().sum()), tuple(counts.tolist())))
    return sorted(found)


def test_all_of_one_move_come_in_order_and_then_pairs():
    estimate = torch.tensor([1.31, 0.62, 1.45, -0.3], dtype=torch.float64)
    found = [tuple(counts.tolist()) for counts in neighbours(estimate, 3, 1000)]
    expected = everything(estimate, 3)
    nearest = [counts for moves, _, counts in expected if moves <= 1]
    assert found[: len(nearest)] == nearest
    assert len(set(found)) == len(found)
    assert set(found) == {counts for moves, _, counts in expected if moves <= 2}


def test_counts_sum_to_the_batch_and_stop_at_the_limit():
    estimate = torch.tensor([2.2, 0.0, 1.9, 0.4, 3.5])
    found = list(neighbours(estimate, 8, 30))
    assert len(found) == 31
    assert all(int(counts.sum()) == 8 and int(counts.min()) >= 0 for counts in found)
    assert [counts.tolist() for counts in neighbours(estimate, 8, 0)] == [[2, 0, 2, 0, 4]]


def test_many_classes_cost_what_is_asked_for():
    """Of 21,841 classes with 8 labels 174,720 moves lead away; none of them is a vector of its own."""
    estimate = torch.rand(21_841, generator=torch.Generator().manual_seed(0))
    tracemalloc.start()
    found = list(neighbours(8 * estimate / estimate.sum(), 8, 4))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == 5
    assert peak < 20 * 2**20


def test_the_order_is_that_of_a_list_of_everything():
    rng = torch.Generator().manual_seed(0)
    for trial in range(20):
        estimate = 2.0 * torch.rand(4, generator=rng, dtype=torch.float64)
        limit = (0, 3, 12, 40)[trial % 4]
        found = [tuple(counts.tolist()) for counts in neighbours(estimate, 4, limit)]
        assert found == listed(estimate, 4, limit)


def listed(estimate, batch, limit):
    """The same through every move and pair, in the order of what they cost."""
    rounded = largest_remainder(estimate, batch)
    excess = (rounded - estimate).tolist()
    moves = sorted(
        (1.0 - excess[source] + excess[target], source, target)
        for source in range(len(excess))
        for target in range(len(excess))
        if source != target and rounded[source] > 0
    )

    def moved(*chosen):
        counts = rounded.tolist()
        for _, source, target in chosen:
            counts[source] -= 1
            counts[target] += 1
        return tuple(counts)

    ways = [(0, 0.0, moved())] + [(1, move[0], moved(move)) for move in moves]
    pairs = itertools.combinations_with_replacement(moves, 2)
    ways += sorted(((2, a[0] + b[0], moved(a, b)) for a, b in pairs), key=lambda way: way[1])
    found = dict.fromkeys(counts for _, _, counts in ways if min(counts) >= 0)
    return list(found)[: 1 + limit]
