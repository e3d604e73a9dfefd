"""The sums of a round's groups become one, in the groups' order whatever the order of arrival."""

from flwr.app import Message, RecordDict

from fedsim.partial_sums import PartialSums
from fedsim.simulation.bundle import Answer, Bundle, summed


class Fold:
    """Holds one running sum, and those of groups that came before their turn.

    A group whose worker keeps dying is answered client by client; its sum is made here then, of the same additions in
    the same order.

    Args:
        whole: nodes whose updates stay in their replies.
    """

    def __init__(self, whole: frozenset[int]) -> None:
        self._whole = whole
        self._total = PartialSums()
        self._early: dict[int, PartialSums] = {}
        self._next = 0
        self._parts: dict[int, tuple[Bundle, dict[str, Message]]] = {}

    @property
    def folded(self) -> int:
        """How many groups are in the sum."""
        return self._next

    def put(self, bundle: Bundle, answer: Answer) -> list[Message]:
        """Take a group's sum, or one client of a group that was split; the replies, without their updates."""
        if bundle.group not in self._parts:
            self._add(bundle.group, PartialSums.read(answer.sums))
            return answer.replies
        group, replies = self._parts[bundle.group]
        replies[bundle.key] = answer.replies[0]
        if len(replies) < len(group.messages):
            return []
        del self._parts[bundle.group]
        sums = PartialSums()
        ordered = [(replies[message.metadata.message_id], message) for message in group]
        light = [summed(reply, message, sums, self._whole) for reply, message in ordered]
        self._add(bundle.group, sums)
        return light

    def split(self, bundle: Bundle) -> list[Bundle]:
        """The group's clients one by one, their updates whole."""
        self._parts[bundle.group] = (bundle, {})
        return [Bundle((message,), None, bundle.group) for message in bundle]

    def is_part(self, bundle: Bundle) -> bool:
        return bundle.group in self._parts

    def result(self) -> list[RecordDict]:
        """The sums of all groups that there are; groups that never came are left out."""
        for group in sorted(self._early):
            self._total.merge(self._early.pop(group))
        return self._total.contents()

    def _add(self, group: int, sums: PartialSums) -> None:
        self._early[group] = sums
        while self._next in self._early:
            self._total.merge(self._early.pop(self._next))
            self._next += 1
