"""Messages that one worker answers one after the other, and what comes back of them."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from logging import getLogger
from threading import Lock
from time import perf_counter

from flwr.app import Context, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp

from fedsim.memory.peak import Memory
from fedsim.simulation.delivery import deliver, error_reply, malformed, partition_of
from fedsim.simulation.group_sums import GroupSums
from fedsim.wire.contents import array_records
from fedsim.wire.partial_sums import PartialSums
from fedsim.wire.records import ARRAYS, AUDIT
from fedsim.wire.reply.checks import ReplyRules, check_train_reply
from fedsim.wire.reply.values import MalformedReply

logger = getLogger(__name__)

ContextOf = Callable[[int], Context]


@dataclass(frozen=True)
class Bundle:
    """Messages for one worker, with the same content.

    Attributes:
        whole: None: replies travel as they are. Else updates come back as sums, and those of these nodes besides.
        group: which of the round's groups it begins with; of a part of a group, which that is.
        lengths: messages of that group and of those that follow it; of the last some may have been left out.
    """

    messages: tuple[Message, ...]
    whole: frozenset[int] | None = None
    group: int = 0
    lengths: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """Names the bundle among all that are under way."""
        return key_of([message.metadata for message in self.messages])

    def groups(self) -> list["Bundle"]:
        """A bundle for each group."""
        ends = itertools.accumulate(self.lengths)
        each = [
            replace(self, messages=self.messages[end - length : end], group=number, lengths=(length,))
            for number, length, end in zip(itertools.count(self.group), self.lengths, ends, strict=False)
        ]
        return [bundle for bundle in each if bundle.messages]

    def __str__(self) -> str:
        return f"the messages to nodes {', '.join(str(message.metadata.dst_node_id) for message in self.messages)}"

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)


def key_of(metadata: Sequence[Metadata]) -> str:
    """The name of the bundle of these messages."""
    return str(metadata[0].message_id)


@dataclass
class BundleReplies:
    """A reply for each message of a bundle in their order, or for the first of them; states and sums besides.

    Attributes:
        states: what nodes keep, by their ids.
        sums: of the clients' updates, where they are summed, of all groups that are complete.
        part: of the clients of the group that is not.
        seconds: that it took.
        memory: what the process that answered has needed so far, where it is one of its own and has looked just now.
    """

    replies: list[Message] = field(default_factory=list)
    states: dict[int, RecordDict] = field(default_factory=dict)
    sums: GroupSums = field(default_factory=GroupSums)
    part: PartialSums = field(default_factory=PartialSums)
    seconds: float = 0.0
    memory: Memory | None = None


class Growing:
    """A bundle's answer while it is made; another thread may end it and take what there is.

    Args:
        whole: as in `Bundle`: updates are added up and taken out of the replies unless it is None.
        rules: what a reply must be like before its update is in a sum; None: anything that can be added up.
        group: as in `Bundle`.
        lengths: as in `Bundle`.
    """

    def __init__(
        self,
        whole: frozenset[int] | None,
        rules: ReplyRules | None = None,
        group: int = 0,
        lengths: Sequence[int] = (),
    ) -> None:
        self._whole = whole
        self._rules = rules
        self._answer = BundleReplies()
        self._group_at = dict(zip(itertools.accumulate(lengths), itertools.count(group), strict=False))
        self._lock = Lock()
        self._ended = False
        self._begun, self._until = 0, math.inf
        self._start = perf_counter()

    def begin(self) -> bool:
        """Count one more message as begun; False where it is another worker's by now."""
        with self._lock:
            if self._begun >= self._until:
                return False
            self._begun += 1
            return True

    def stop_early(self) -> int:
        """Begin no more messages than have been begun, the first at least: so many will be answered."""
        with self._lock:
            self._until = max(self._begun, 1)
            return self._until

    def add(self, message: Message, reply: Message, context: Context) -> bool:
        """Take one client's reply; False where the answer has been ended."""
        with self._lock:
            if self._ended:
                return False
            if context.state:
                self._answer.states[context.node_id] = context.state
            if self._whole is not None:
                reply = summed(reply, message, self._answer.part, self._whole, self._rules)
            self._answer.replies.append(reply)
            if (group := self._group_at.get(len(self._answer.replies))) is not None:
                self._answer.sums.add(group, self._answer.part)
                self._answer.part = PartialSums()
            return True

    def end(self) -> BundleReplies:
        """The answer, of as many clients as there are."""
        with self._lock:
            self._ended = True
            self._answer.seconds = perf_counter() - self._start
            return self._answer


def run_bundle(app: ClientApp, messages: Sequence[Message], context_of: ContextOf, growing: Growing) -> BundleReplies:
    """Deliver the messages in order, as many as are wanted of it."""
    for message in messages:
        if not growing.begin():
            break
        context = context_of(message.metadata.dst_node_id)
        if not growing.add(message, deliver(app, message, context), context):
            break
    return growing.end()


def summed(
    reply: Message, message: Message, sums: PartialSums, whole: frozenset[int], rules: ReplyRules | None = None
) -> Message:
    """The reply once its update is in the sums: without arrays and ground truth, unless it is to travel whole."""
    if reply.has_error():
        return reply
    try:
        if rules is not None:
            start, client = array_records(message.content)[ARRAYS], partition_of(message.metadata.dst_node_id)
            check_train_reply(reply.content, start, rules, client)
        added = sums.add(reply.content)
    except MalformedReply as fault:
        return malformed(message, str(fault), reply.content)
    except (KeyError, TypeError, ValueError) as error:
        return error_reply(message, f"an update that cannot be summed: {type(error).__name__}: {error}")
    if added and message.metadata.dst_node_id not in whole:
        reply.content = RecordDict({k: record for k, record in reply.content.items() if k not in (ARRAYS, AUDIT)})
    return reply
