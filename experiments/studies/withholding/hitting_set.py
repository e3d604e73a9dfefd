"""Smallest sets that meet every set of a family."""

from collections.abc import Collection, Sequence
from itertools import combinations

Names = frozenset[str]


def smallest_hitting_sets(universe: Sequence[str], family: Collection[Names]) -> list[Names]:
    """All sets of the least size that have an element of every member; by size, so for some twenty names at most.

    In the order of the universe. The empty family is met by the empty set; a family with an empty member by nothing.
    """
    for size in range(len(universe) + 1):
        result = [frozenset(chosen) for chosen in combinations(universe, size) if _hits(chosen, family)]
        if result:
            return result
    return []


def _hits(chosen: Sequence[str], family: Collection[Names]) -> bool:
    return all(not member.isdisjoint(chosen) for member in family)
