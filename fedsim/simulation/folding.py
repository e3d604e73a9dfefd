"""The sums of a round's groups become one, in the groups' order whatever the order of arrival."""

import json
from collections.abc import Callable, Sequence
from functools import partial

from flwr.app import Message, RecordDict

from fedsim.partial_sums import Key, PartialSums
from fedsim.records import ARRAYS, METRICS, NUM_EXAMPLES, UPDATE, buffer_names
from fedsim.reply_checks import ReplyRules
from fedsim.reply_votes import Names, unlike, usual_names
from fedsim.simulation.bundle import Answer, Bundle, summed
from fedsim.simulation.delivery import malformed


class Fold:
    """Holds one running sum, and those of groups that came before their turn.

    A group whose worker keeps dying is answered client by client; its sum is made here then, of the same additions in
    the same order.

    Args:
        whole: nodes whose updates stay in their replies.
        rules: what every reply in a sum is like; None: nothing was checked.
    """

    def __init__(self, whole: frozenset[int], rules: ReplyRules | None = None) -> None:
        self._whole, self._rules = whole, rules
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
        (replies[bundle.key],) = answer.replies
        if len(replies) < len(group.messages):
            return []
        return self._sum_parts(bundle.group)

    def rest(self) -> list[Message]:
        """The replies of split groups that never became whole; their sums are of those who answered."""
        return [reply for group in sorted(self._parts) for reply in self._sum_parts(group)]

    def _sum_parts(self, number: int) -> list[Message]:
        group, replies = self._parts.pop(number)
        sums = PartialSums()
        answered = [message for message in group if message.metadata.message_id in replies]
        light = [
            summed(replies[message.metadata.message_id], message, sums, self._whole, self._rules)
            for message in answered
        ]
        self._add(number, sums)
        return light

    def split(self, bundle: Bundle) -> list[Bundle]:
        """The group's clients one by one, their updates whole."""
        self._parts[bundle.group] = (bundle, {})
        return [Bundle((message,), None, bundle.group) for message in bundle]

    def is_part(self, bundle: Bundle) -> bool:
        return bundle.group in self._parts

    def result(self, messages: Sequence[Message], replies: Sequence[Message]) -> tuple[list[Message], list[RecordDict]]:
        """The round's replies, and the sums of all groups that there are; groups that never came are left out.

        Where replies are checked, a client whose metrics or gradients have other names than those of most clients is
        refused, with the sum that it is in.
        """
        for group in sorted(self._early):
            self._total.merge(self._early.pop(group))
        judged = list(replies)
        if self._rules is not None:
            judged = self._alike(messages, judged, "metrics", _metrics, lambda key: key.metrics)
            if self._rules.kind == "gradient":
                tensors = partial(_tensors, rules=self._rules)
                judged = self._alike(messages, judged, "tensors", tensors, lambda key: key.tensors)
        return judged, self._total.contents()

    def _alike(
        self,
        messages: Sequence[Message],
        replies: Sequence[Message],
        what: str,
        names_of: Callable[[RecordDict], Names],
        names_in: Callable[[Key], Names],
    ) -> list[Message]:
        names = [() if reply.has_error() else names_of(reply.content) for reply in replies]
        usual = usual_names(names)
        by_key = self._total.by_key
        self._total.by_key = {key: total for key, total in by_key.items() if names_in(key) == usual}
        return [
            malformed(message, unlike(what, found, usual)) if found and found != usual else reply
            for message, reply, found in zip(messages, replies, names, strict=True)
        ]

    def _add(self, group: int, sums: PartialSums) -> None:
        self._early[group] = sums
        while self._next in self._early:
            self._total.merge(self._early.pop(self._next))
            self._next += 1


def _metrics(content: RecordDict) -> Names:
    return tuple(sorted(name for name in content.metric_records[METRICS] if name != NUM_EXAMPLES))


def _tensors(content: RecordDict, rules: ReplyRules) -> Names:
    """What a client shared whose reply was checked, also where its arrays are no longer there."""
    if ARRAYS in content:
        return tuple(sorted(content.array_records[ARRAYS]))
    withheld = json.loads(str(content.config_records[UPDATE]["withheld"]))
    return tuple(sorted((rules.trained - set(withheld)).union(buffer_names(content))))
