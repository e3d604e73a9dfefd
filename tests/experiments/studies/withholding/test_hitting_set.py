"""Smallest hitting sets against the definition, subset by subset."""

from itertools import chain, combinations

import numpy as np
import pytest

from experiments.studies.withholding.hitting_set import smallest_hitting_sets


def by_definition(universe, family):
    subsets = chain.from_iterable(combinations(universe, size) for size in range(len(universe) + 1))
    hitting = [set(subset) for subset in subsets if all(set(subset) & member for member in family)]
    least = min((len(subset) for subset in hitting), default=None)
    return {frozenset(subset) for subset in hitting if len(subset) == least}


@pytest.mark.parametrize("seed", range(10))
def test_every_smallest_set_and_no_other(seed):
    rng = np.random.default_rng(seed)
    universe = list("abcdef")
    family = [frozenset(rng.choice(universe, size=rng.integers(1, 4), replace=False)) for _ in range(5)]
    found = smallest_hitting_sets(universe, family)
    assert set(found) == by_definition(universe, family)
    assert len(set(found)) == len(found)


def test_limits():
    assert smallest_hitting_sets(["a", "b"], []) == [frozenset()]
    assert smallest_hitting_sets(["a", "b"], [frozenset()]) == []
    assert smallest_hitting_sets(["a", "b"], [frozenset("ab")]) == [frozenset("a"), frozenset("b")]
