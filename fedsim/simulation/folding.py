"""The sums of a round's groups become one, in whatever parts they arrive."""

import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

from flwr.app import Message, RecordDict

from fedsim.simulation.bundle import Bundle, BundleReplies, summed
from fedsim.simulation.delivery import malformed
from fedsim.simulation.group_sums import GroupSums
from fedsim.wire.contents import array_records, config_records, metric_records
from fedsim.wire.partial_sums import Key, PartialSums
from fedsim.wire.records import ARRAYS, METRICS, NUM_EXAMPLES, UPDATE, buffer_names
from fedsim.wire.reply.checks import ReplyRules
from fedsim.wire.reply.votes import Names, unlike, usual_names


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
    """Takes what workers answer of the groups' sums, and gives the round's.

    Clients of a group are answered one by one where its worker keeps dying, and the last of them where it is slow while
    others have nothing to do; the group's sum is made here then, of the same additions in the same order.

    Args:
        whole: nodes whose updates stay in their replies.
        rules: what every reply in a sum is like; None: nothing was checked.
    """

    def __init__(self, whole: frozenset[int], rules: ReplyRules | None = None) -> None:
        self._whole, self._rules = whole, rules
        self._total = PartialSums()
        self._sums = GroupSums()
        self._parts: dict[int, _Parts] = {}

    def put(self, bundle: Bundle, answer: BundleReplies) -> list[Message]:
        """Take the sums of groups, or of a part of one; the replies, without their updates."""
        if bundle.whole is None:
            parts = self._parts[bundle.group]
            (parts.whole[bundle.key],) = answer.replies
            return self._sum_parts(bundle.group) if parts.complete else []
        self._sums.merge(answer.sums)
        ends = [0, *accumulate(bundle.lengths)]
        complete = bisect_right(ends, len(answer.replies)) - 1
        replies, others = answer.replies[: ends[complete]], answer.replies[ends[complete] :]
        number = bundle.group + complete
        if not others:
            return replies
        if number not in self._parts:
            self._sums.add(number, answer.part)
            return answer.replies
        parts = self._parts[number]
        parts.head.merge(answer.part)
        parts.light += others
        return [*replies, *(self._sum_parts(number) if parts.complete else ())]

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
        self._sums.add(number, parts.head)
        return parts.light + light

    def split(self, bundle: Bundle, begun: int = 0) -> list[Bundle]:
        """What comes after the first `begun` messages; the bundle's own sums are of the others.

        Of several groups those that nothing was begun of, each by itself. Of one group, and of that which was begun,
        the clients one by one, their updates whole. Of a group that was split before, the bundle has its first clients.
        """
        groups, rest = bundle.groups(), []
        for group in groups:
            done, begun = min(begun, len(group.messages)), max(0, begun - len(group.messages))
            if len(groups) > 1 and done == 0 and group.group not in self._parts:
                rest.append(group)
            elif done < len(group.messages):
                self._parts.setdefault(group.group, _Parts(group))
                rest += [Bundle((message,), None, group.group) for message in group.messages[done:]]
        return rest

    def result(self, messages: Sequence[Message], replies: Sequence[Message]) -> tuple[list[Message], list[RecordDict]]:
        """The round's replies, and the sums of all groups that there are; groups that never came are left out.

        Where replies are checked, a client whose metrics or gradients have other names than those of most clients is
        refused, with the sum that it is in.
        """
        self._total = self._sums.total()
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
        counting = () if self._rules is None else self._rules.counting
        usual = usual_names(names, what == "tensors", counting)
        by_key = self._total.by_key
        self._total.by_key = {key: total for key, total in by_key.items() if names_in(key) == usual}
        return [
            malformed(message, unlike(what, found, usual), reply.content) if found and found != usual else reply
            for message, reply, found in zip(messages, replies, names, strict=True)
        ]


def _metrics(content: RecordDict) -> Names:
    return tuple(sorted(name for name in metric_records(content)[METRICS] if name != NUM_EXAMPLES))


def _tensors(content: RecordDict, rules: ReplyRules) -> Names:
    """What a client shared whose reply was checked, also where its arrays are no longer there."""
    if ARRAYS in content:
        return tuple(sorted(array_records(content)[ARRAYS]))
    withheld = json.loads(str(config_records(content)[UPDATE]["withheld"]))
    return tuple(sorted((rules.trained - set(withheld)).union(buffer_names(content))))
