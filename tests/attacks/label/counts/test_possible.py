"""The counts that the bias's gradient leaves possible, against all counts there are."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from attacks.label.counts.possible import (
    least_counts,
    nearest_possible,
    number_possible,
    possible_counts,
    whole_counts,
)

CLASSES = 4


def all_counts(batch):
    return [n for n in itertools.product(range(batch + 1), repeat=CLASSES) if sum(n) == batch]


def bias_gradient(labels, smoothing, sureness, seed):
    rng = torch.Generator().manual_seed(seed)
    probs = (sureness * torch.randn(len(labels), CLASSES, generator=rng, dtype=torch.float64)).softmax(dim=1)
    hard = F.one_hot(torch.tensor(labels), CLASSES).double()
    return (probs - (1 - smoothing) * hard - smoothing / CLASSES).mean(dim=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("sureness", [0.0, 1.0, 10.0])
def test_they_are_all_counts_whose_mean_softmax_is_one(sureness, smoothing):
    for seed, labels in enumerate(([2], [0, 0], [1, 1, 3], [0, 1, 2, 2, 2])):
        batch = len(labels)
        gradient = bias_gradient(labels, smoothing, sureness, seed)
        expected = set()
        for counts in all_counts(batch):
            mean = (1 - smoothing) * torch.tensor(counts) / batch + smoothing / CLASSES + gradient
            if bool((mean >= -1e-9).all()) and bool((mean <= 1 + 1e-9).all()):
                expected.add(counts)
        least = least_counts(gradient, batch, smoothing)
        found = [tuple(counts.tolist()) for counts in possible_counts(least, batch)]
        assert len(found) == len(set(found)) == number_possible(least, batch)
        assert expected <= set(found)
        assert len(found) == len(expected) or any(abs(float(m)) < 1e-2 for m in gradient.abs())
        assert tuple(torch.bincount(torch.tensor(labels), minlength=CLASSES).tolist()) in found


@pytest.mark.parametrize("among", [[], [1], [0, 3], [0, 1, 2, 3]])
def test_of_some_classes_they_are_those_without_others(among):
    for least in ([0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 2, 1]):
        expected = {
            counts
            for counts in all_counts(3)
            if all(n >= m for n, m in zip(counts, least, strict=True))
            and all(n == 0 or place in among for place, n in enumerate(counts))
        }
        given = torch.tensor(least), 3, torch.tensor(among, dtype=torch.long)
        found = [tuple(counts.tolist()) for counts in possible_counts(*given)]
        assert len(found) == len(set(found)) == number_possible(*given)
        assert set(found) == expected


def test_an_untrained_head_leaves_one():
    gradient = bias_gradient([0, 2, 2], 0.0, 0.0, 0)
    least = least_counts(gradient, 3)
    assert number_possible(least, 3) == 1
    assert next(possible_counts(least, 3)).tolist() == [1, 0, 2, 0]


def test_what_rounding_may_have_moved_stays_possible():
    gradient = torch.tensor([-0.5 - 1e-5, 0.5, 1e-5, 0.0])
    assert least_counts(gradient, 2).tolist() == [1, 0, 0, 0]
    assert least_counts(torch.tensor([-0.51, 0.5, 0.01, 0.0]), 2).tolist() == [2, 0, 0, 0]
    assert least_counts(torch.tensor([-0.51, 0.5, 0.01, 0.0]), 2, rounding=0.02).tolist() == [1, 0, 0, 0]


def test_no_batch_has_that_gradient():
    least = least_counts(torch.tensor([-5.0, 2.0, 3.0, 0.0]), 2)
    assert number_possible(least, 2) == 0
    assert list(possible_counts(least, 2)) == []
    assert nearest_possible(torch.tensor([5.0, 0.0, 0.0, 0.0]), least, 2).tolist() == [2, 0, 0, 0]


def test_the_nearest_are_possible():
    least = torch.tensor([0, 2, 0, 0])
    assert nearest_possible(torch.tensor([2.6, 0.1, 1.4, 0.0]), least, 4).tolist() == [2, 2, 0, 0]
    assert nearest_possible(torch.tensor([1, 2, 1, 0]), least, 4).tolist() == [1, 2, 1, 0]


def test_the_nearest_of_some_classes_are_of_no_other():
    counts, least, among = torch.tensor([2.6, 0.1, 1.4, 0.0]), torch.tensor([0, 1, 0, 0]), torch.tensor([1, 3])
    assert nearest_possible(counts, least, 3, among).tolist() == [0, 2, 0, 1]
    assert nearest_possible(counts, least, 3, among[:0]).sum() == 3


def test_whole_counts_are_the_best_of_all_multisets(rng):
    """Brute force over every multiset of six labels of four classes."""
    least = torch.tensor([1, 0, 0, 0])
    every = torch.stack(list(possible_counts(least, 6)))
    for _ in range(50):
        factor = torch.randn(4, 8, generator=rng, dtype=torch.float64)
        precision = factor @ factor.T
        centre = 1.5 + 2.0 * torch.randn(4, generator=rng, dtype=torch.float64)
        cost = torch.einsum("ni,ij,nj->n", every - centre, precision, every - centre)
        found = whole_counts(precision, centre, least, 6)
        assert int(found.sum()) == 6
        assert float((found - centre) @ precision @ (found - centre)) <= float(cost.min()) + 1e-9
