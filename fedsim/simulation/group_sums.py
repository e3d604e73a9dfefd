"""Sums of a round's groups: added in pairs of a fixed tree, whoever makes a group's sum and whenever it is there."""

from collections.abc import Iterable

from flwr.app import RecordDict

from fedsim.wire.partial_sums import PartialSums


class GroupSums:
    """Adds neighbours as soon as both are there: two groups, then two pairs, and so on.

    A worker that has made the sums of several groups adds up what it can, and the server the rest: the same additions
    in the same order. While a group is missing, the others are held as few sums, logarithmic in their number.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[int, PartialSums]] = {}  # by first group: how many groups, and their sum

    def __len__(self) -> int:
        return len(self._held)

    def add(self, group: int, sums: PartialSums, count: int = 1) -> None:
        """Take the sum of this group, or of `count` groups from it on."""
        first = group
        while True:
            neighbour = first ^ count
            if self._held.get(neighbour, (0,))[0] != count:
                break
            _, other = self._held.pop(neighbour)
            left, right = (other, sums) if neighbour < first else (sums, other)
            left.merge(right)
            first, count, sums = min(first, neighbour), 2 * count, left
        self._held[first] = count, sums

    def merge(self, other: "GroupSums") -> None:
        """Take all that another has, of other groups."""
        for first, (count, sums) in other._held.items():
            self.add(first, sums, count)

    def total(self) -> PartialSums:
        """The sum of all groups that there are; it is handed over."""
        total = PartialSums()
        for group in sorted(self._held):
            total.merge(self._held.pop(group)[1])
        return total

    def __reduce__(self) -> tuple[object, ...]:
        held = [(first, count, sums.contents()) for first, (count, sums) in self._held.items()]
        return GroupSums._read, (held,)

    @staticmethod
    def _read(held: Iterable[tuple[int, int, list[RecordDict]]]) -> "GroupSums":
        sums = GroupSums()
        sums._held = {first: (count, PartialSums.read(contents)) for first, count, contents in held}
        return sums
