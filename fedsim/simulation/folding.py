"""The sums of a round's groups become one: added in pairs of a fixed tree, whatever the order of arrival."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from flwr.app import Message, RecordDict

from fedsim.simulation.bundle import Bundle, BundleReplies, summed
from fedsim.simulation.delivery import malformed
from fedsim.wire.contents import array_records, config_records, metric_records
from fedsim.wire.partial_sums import Key, PartialSums
from fedsim.wire.records import ARRAYS, METRICS, NUM_EXAMPLES, UPDATE, buffer_names
from fedsim.wire.reply_checks import ReplyRules
from fedsim.wire.reply_votes import Names, unlike, usual_names


@dataclass
class _Parts:
    """A group that comes in parts.

    Attributes:
        head: the sum of its first clients, made where they were.
        light: the replies of those, without their updates.
        whole: replies of others, with theirs, by message.
    """

    group: Bundle
    head: PartialSums = field(default_factory=PartialSums)
    light: list[Message] = field(default_factory=list)
    whole: dict[str, Message] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.light) + len(self.whole) == len(self.group.messages)


class Fold:
    """Adds neighbours as soon as both are there: two groups, then two pairs, and so on.

    While a group is missing, the others are held as few sums, logarithmic in their number: nobody waits for it.

    Clients of a group are answered one by one where its worker keeps dying, and the last of them where it is slow while
    others have nothing to do; the group's sum is made here then, of the same additions in the same order.

    Args:
        whole: nodes whose updates stay in their replies.
        rules: what every reply in a sum is like; None: nothing was checked.
    """

    def __init__(self, whole: frozenset[int], rules: ReplyRules | None = None) -> None:
        self._whole, self._rules = whole, rules
        self._total = PartialSums()
        self._sums: dict[int, tuple[int, PartialSums]] = {}  # by first group: how many groups, and their sum
        self._parts: dict[int, _Parts] = {}

    def put(self, bundle: Bundle, answer: BundleReplies) -> list[Message]:
        """Take a group's sum, or one of its parts; the replies, without their updates."""
        if bundle.group not in self._parts:
            self._add(bundle.group, PartialSums.read(answer.sums))
            return answer.replies
        parts = self._parts[bundle.group]
        if bundle.whole is None:
            (parts.whole[bundle.key],) = answer.replies
        else:
            parts.head.merge(PartialSums.read(answer.sums))
            parts.light += answer.replies
        return self._sum_parts(bundle.group) if parts.complete else []

    def rest(self) -> list[Message]:
        """The replies of groups in parts that never became whole; their sums are of those who answered."""
        return [reply for group in sorted(self._parts) for reply in self._sum_parts(group)]

    def _sum_parts(self, number: int) -> list[Message]:
        parts = self._parts.pop(number)
        answered = [message for message in parts.group if message.metadata.message_id in parts.whole]
        light = [
            summed(parts.whole[message.metadata.message_id], message, parts.head, self._whole, self._rules)
            for message in answered
        ]
        self._add(number, parts.head)
        return parts.light + light

    def split(self, bundle: Bundle, begun: int = 0) -> list[Bundle]:
        """The clients after the first `begun`, one by one, their updates whole; the bundle's own sum is of the others.

        Of a group that was split before, the bundle is its first clients.
        """
        self._parts.setdefault(bundle.group, _Parts(bundle))
        return [Bundle((message,), None, bundle.group) for message in bundle.messages[begun:]]

    def result(self, messages: Sequence[Message], replies: Sequence[Message]) -> tuple[list[Message], list[RecordDict]]:
        """The round's replies, and the sums of all groups that there are; groups that never came are left out.

        Where replies are checked, a client whose metrics or gradients have other names than those of most clients is
        refused, with the sum that it is in.
        """
        for group in sorted(self._sums):
            self._total.merge(self._sums.pop(group)[1])
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
        usual = usual_names(names, fullest=what == "tensors")
        by_key = self._total.by_key
        self._total.by_key = {key: total for key, total in by_key.items() if names_in(key) == usual}
        return [
            malformed(message, unlike(what, found, usual)) if found and found != usual else reply
            for message, reply, found in zip(messages, replies, names, strict=True)
        ]

    def _add(self, group: int, sums: PartialSums) -> None:
        first, count = group, 1
        while True:
            neighbour = first ^ count
            if self._sums.get(neighbour, (0,))[0] != count:
                break
            _, other = self._sums.pop(neighbour)
            left, right = (other, sums) if neighbour < first else (sums, other)
            left.merge(right)
            first, count, sums = min(first, neighbour), 2 * count, left
        self._sums[first] = count, sums


def _metrics(content: RecordDict) -> Names:
    return tuple(sorted(name for name in metric_records(content)[METRICS] if name != NUM_EXAMPLES))


def _tensors(content: RecordDict, rules: ReplyRules) -> Names:
    """What a client shared whose reply was checked, also where its arrays are no longer there."""
    if ARRAYS in content:
        return tuple(sorted(array_records(content)[ARRAYS]))
    withheld = json.loads(str(config_records(content)[UPDATE]["withheld"]))
    return tuple(sorted((rules.trained - set(withheld)).union(buffer_names(content))))
