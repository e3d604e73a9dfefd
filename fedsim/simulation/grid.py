"""What every simulated Grid has in common: node ids, message ids, order of replies, sums of updates."""

import itertools
import math
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from logging import getLogger
from time import monotonic, perf_counter

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedsim.simulation.bundle import Bundle, BundleReplies
from fedsim.simulation.delivery import FIRST_CLIENT_NODE_ID, error_reply, partition_of
from fedsim.simulation.folding import Fold
from fedsim.simulation.traffic import Traffic
from fedsim.wire.contents import config_records
from fedsim.wire.partial_sums import SUM, SUM_OF, SUM_UPDATE, WHOLE, PartialSums, sum_size
from fedsim.wire.records import CONFIG
from fedsim.wire.reply.checks import ReplyRules

logger = getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 1.0
"""At the clock of a round, and for who has something to do besides."""

SERVER_NODE_ID = 1
RUN_ID = 1

ClientAppFactory = Callable[[], ClientApp]
OnReply = Callable[[Message], None]


@dataclass(frozen=True)
class Ended:
    """A bundle that is no longer under way: answered, or lost with its worker."""

    bundle: Bundle
    answer: BundleReplies | None
    error: str = ""


class SimulatedGrid(Grid):
    """A Flower `Grid` whose nodes are partitions 0 … n-1, with ids that are the same in every run.

    Replies of `send_and_receive` come in the order of the messages, whatever the order of arrival. A
    client that raises, dies or exceeds the timeout answers with an error message, as Flower's does.

    Where a round's instructions ask for sums (`fedsim.wire.partial_sums`), clients are taken in fixed groups, a group's
    updates are added up where they are made, and the groups' sums in pairs of a fixed tree: neither the number of
    workers nor who is observed changes a bit. The sums come back in the replies of as many clients as there are sums.

    Args:
        num_clients: how many nodes there are; they are numbers, not objects.
        work_of: how much a partition has to do, in any unit: the heaviest begin. Part of the configuration where
            updates are summed, since it decides the order of the additions.
        rules: what an honest reply is like: a malformed one is an error before it gets into a sum.

    Attributes:
        on_reply: called in the server's thread for each reply as it arrives.
        on_look: called at least every second of an exchange, in the server's thread.
        on_waiting: told, now and then, that a round waits for workers that nothing has room for, and what they ask for.
        states: what nodes keep between messages, by node id; only nodes that wrote to their state are in it.
        traffic: what the last `send_and_receive` cost.
    """

    def __init__(
        self,
        num_clients: int,
        work_of: Callable[[int], float] | None = None,
        rules: ReplyRules | None = None,
    ) -> None:
        self.num_clients = num_clients
        self.on_reply: OnReply | None = None
        self.on_look: Callable[[], None] = lambda: None
        self.on_waiting: Callable[[str], None] = logger.warning
        self.states: dict[int, RecordDict] = {}
        self.traffic = Traffic()
        self._seconds: dict[str, float] = {}
        self.rules = rules
        self._work_of = work_of
        self._message_ids = itertools.count(1)
        self._arrived: dict[str, Message] = {}
        self._run = Run.create_empty(run_id=RUN_ID)
        # Flower's strategies construct messages without naming their sender: it is read from here.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN_ID, SERVER_NODE_ID, 1

    @property
    def checks_replies(self) -> bool:
        """Whether no malformed reply is in the sums."""
        return self.rules is not None

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return range(FIRST_CLIENT_NODE_ID, FIRST_CLIENT_NODE_ID + self.num_clients)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            ids.append(self._number(message))
            self._submit(Bundle((message,)))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        for end in self._poll(0.0):
            self._arrived |= {reply.metadata.reply_to_message_id: reply for reply in self._taken(end, None)}
        return [self._arrived.pop(message_id) for message_id in set(message_ids) & set(self._arrived)]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | int | None = None) -> Iterable[Message]:
        self.traffic = Traffic(workers=self.traffic.workers)
        ordered = list(messages)
        order = [self._number(message) for message in ordered]
        size, whole = _sums_wanted(ordered)
        fold = None if size == 0 else Fold(whole, self.rules)
        replies: dict[str, Message] = {}
        for reply in self._exchange(
            self._bundles(ordered, max(size, 1), None if fold is None else whole), fold, timeout
        ):
            replies[reply.metadata.reply_to_message_id] = reply
            if self.on_reply is not None:
                self.on_reply(reply)
        for message in ordered:
            if message.metadata.message_id not in replies:
                late = error_reply(message, f"no reply within {timeout:g} s", ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
                replies[message.metadata.message_id] = late
                if self.on_reply is not None:
                    self.on_reply(late)
        answered = [replies[message_id] for message_id in order]
        if fold is not None:
            before = perf_counter()
            answered, sums = fold.result(ordered, answered)
            _attach(sums, answered)
            self.traffic.receive += perf_counter() - before
        return answered

    def _exchange(self, bundles: list[Bundle], fold: Fold | None, timeout: float | int | None) -> Iterable[Message]:
        """Replies as they arrive, until there are no more or the time is over; then the rest is abandoned.

        The clock starts with the first worker: what it takes to start one is not the clients' doing.
        """
        waiting, under_way, deadline = deque(bundles), set[str](), math.inf

        def submit(bundle: Bundle) -> None:
            under_way.add(bundle.key)
            self._submit(bundle)

        while waiting or under_way:
            if timeout is not None and deadline == math.inf and self._ready:
                deadline = monotonic() + timeout
            left = deadline - monotonic()
            if left <= 0:
                for end in self._abandon(under_way):
                    yield from self._taken(end, fold)
                yield from fold.rest() if fold is not None else ()
                return
            while waiting and len(under_way) < self._ahead:
                submit(self._joined(waiting))
            self.on_look()
            ended = self._poll(min(left, SECONDS_BETWEEN_LOOKS))
            for bundle, begun in self._taken_back():
                for one in _one_by_one(bundle, begun) if fold is None else fold.split(bundle, begun):
                    submit(one)
            for end in ended:
                under_way.discard(end.bundle.key)
                if end.answer is not None or (len(end.bundle.messages) == 1 and len(end.bundle.lengths) < 2):
                    yield from self._taken(end, fold)
                else:
                    for one in _one_by_one(end.bundle) if fold is None else fold.split(end.bundle):
                        submit(one)

    def _joined(self, waiting: deque[Bundle]) -> Bundle:
        """The first bundles that wait, as many as are best sent together; their content must be the same."""
        bundle = waiting.popleft()
        first, size = bundle.messages[0], len(bundle.messages)
        seconds = size * self._seconds.get(first.metadata.message_type, math.inf)
        most = self._together(len(waiting) + 1, seconds, bundle.whole)
        joined = [bundle]
        while waiting and len(joined) < most and waiting[0].messages[0].content is first.content:
            joined.append(waiting.popleft())
        messages = tuple(chain.from_iterable(one.messages for one in joined))
        lengths = tuple(chain.from_iterable(one.lengths for one in joined))
        return replace(bundle, messages=messages, lengths=lengths)

    def _taken(self, end: Ended, fold: Fold | None) -> list[Message]:
        """The replies of a bundle, once its sums are in the fold."""
        answer = end.answer or self._lost(end)
        self.states |= answer.states
        if answer.memory is not None:
            self.traffic.workers |= answer.memory
        if answer.replies and answer.seconds:
            self._seconds[end.bundle.messages[0].metadata.message_type] = answer.seconds / len(answer.replies)
        if fold is None:
            return answer.replies
        before = perf_counter()
        folded = fold.put(end.bundle, answer)
        self.traffic.receive += perf_counter() - before
        return folded

    def _lost(self, end: Ended) -> BundleReplies:
        """What stands for the answer of a client whose worker died: a group of nobody else has an empty sum."""
        answer = BundleReplies(
            [error_reply(message, end.error, ErrorCode.CLIENT_APP_CRASHED) for message in end.bundle]
        )
        if end.bundle.lengths == (1,):
            answer.sums.add(end.bundle.group, PartialSums())
        return answer

    def _bundles(self, messages: Sequence[Message], size: int, whole: frozenset[int] | None) -> list[Bundle]:
        """Groups of this size, those with the most work first; a last one that would be too small is allowed."""
        by_work = list(messages)
        if self._work_of is not None:
            work_of = self._work_of
            by_work.sort(key=lambda message: -work_of(partition_of(message.metadata.dst_node_id)))
        groups = [tuple(by_work[start : start + size]) for start in range(0, len(by_work), size)]
        if whole is None:
            return [Bundle(group) for group in groups]
        return [Bundle(group, whole, number, (len(group),)) for number, group in enumerate(groups)]

    def _number(self, message: Message) -> str:
        message_id = f"{next(self._message_ids)}"
        # Flower has no public setter: a real SuperLink assigns ids behind the API.
        message.metadata.__dict__["_message_id"] = message_id
        return message_id

    def context_of(self, node_id: int) -> Context:
        """The node's context; its state persists between messages only where the client wrote to it."""
        return make_context(node_id, self.num_clients, self.states.get(node_id))

    @property
    def _ready(self) -> bool:
        """Whether there is a worker."""
        return True

    @property
    @abstractmethod
    def _ahead(self) -> int:
        """How many bundles may be under way."""

    def _together(self, waiting: int, seconds: float, whole: frozenset[int] | None) -> int:
        """How many of the waiting bundles are best sent together.

        Args:
            seconds: that each is expected to take.
            whole: as in `Bundle`.
        """
        return 1

    @abstractmethod
    def _submit(self, bundle: Bundle) -> None:
        """Take a bundle for delivery."""

    @abstractmethod
    def _poll(self, timeout: float | int | None) -> list[Ended]:
        """Bundles that ended: at least one, unless `timeout` seconds pass first or none is under way."""

    def _taken_back(self) -> list[tuple[Bundle, int]]:
        """Bundles under way whose worker has agreed to answer only their first messages, so many; the rest is ours."""
        return []

    @abstractmethod
    def _abandon(self, keys: set[str]) -> list[Ended]:
        """Forget these bundles; what some of them had finished."""

    @abstractmethod
    def close(self) -> None:
        """Release the workers."""


def make_context(node_id: int, num_clients: int, state: RecordDict | None) -> Context:
    """What a client is given beside its message."""
    return Context(
        run_id=RUN_ID,
        node_id=node_id,
        node_config={"partition-id": partition_of(node_id), "num-partitions": num_clients},
        state=RecordDict() if state is None else state,
        run_config={},
    )


def _one_by_one(bundle: Bundle, begun: int = 0) -> list[Bundle]:
    return [Bundle((message,)) for message in bundle.messages[begun:]]


def _sums_wanted(messages: Sequence[Message]) -> tuple[int, frozenset[int]]:
    """(clients of a group, nodes whose updates travel besides); 0 where all replies are to travel as they are."""
    if not messages or messages[0].metadata.message_type != MessageType.TRAIN:
        return 0, frozenset()
    config = config_records(messages[0].content).get(CONFIG, ConfigRecord())
    whole: list[int] = config.get(WHOLE, [])  # type: ignore[assignment]
    return sum_size(config), frozenset(whole)


def _attach(sums: list[RecordDict], replies: Iterable[Message]) -> None:
    """Each sum goes into the reply of a client that answered: there are never more sums than such clients."""
    answered = (reply for reply in replies if not reply.has_error())
    for content, reply in zip(sums, answered, strict=False):
        for name in (SUM, SUM_OF, SUM_UPDATE):
            reply.content[name] = content[name]
