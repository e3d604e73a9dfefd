"""Orders of labels that a certificate tries."""

from itertools import islice, permutations

import pytest

from attacks.certificate.assignments import MAX_ORDERS, _orders


@pytest.mark.parametrize("labels", [[3], [1, 4, 4], [0, 0, 5, 7], [2, 2, 2, 9, 9]])
def test_they_are_the_different_permutations_sorted(labels):
    assert list(map(tuple, _orders(labels))) == sorted(set(permutations(labels)))


@pytest.mark.parametrize(("labels", "count"), [([7] * 16, 1), ([3] + [7] * 15, 16), ([3, 4] + [7] * 14, MAX_ORDERS)])
def test_labels_alike_cost_nothing(labels, count):
    """Of 16 in a row there are 2e13 permutations."""
    assert len(list(islice(_orders(labels), MAX_ORDERS))) == count
