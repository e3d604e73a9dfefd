"""Flower's Grid with clients in place of nodes."""

import math
import time
from collections.abc import Callable, Iterable
from logging import getLogger

from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from httpx import HTTPError

import fedsim
from experiments.flower.settings import INTRODUCTION, PARTITION_ID, REFUSAL, VERSION
from fedsim.errors import RunError
from fedsim.simulation import node_id_of
from fedsim.wire.reply.values import LATE, MALFORMED, MalformedReply

OnReply = Callable[[Message], None]

logger = getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 1.0
LOOKS_A_PAUSE = 4.0
"""Where taking replies took t seconds, a pause of at least this many t follows."""

LONGEST_REASON = 300
"""Characters of what a SuperNode says of its failure; the end of a traceback counts."""

REFUSALS_TOLD = 3

UNAVAILABLE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
"""The SuperLink's own errors: a reply that expired, was not all there, or is not given out as its node has gone."""


class NumberedGrid(Grid):
    """A Flower Grid whose nodes are the partitions that they hold, under the ids that a simulated Grid gives them.

    SuperNodes have random 64-bit ids, and have them again when started anew where their keys are registered. Here each
    is asked for its partition id when it comes, so that sampling, the order of sums and the names of clients are those
    of a simulation with the same seed. Of two SuperNodes with one partition the first that is still there has it, so
    that one started anew takes over.

    Replies come in the order of the messages. A client that does not answer in time gets an error reply, as on a
    simulated Grid.

    Args:
        inner: the Grid that Flower gave to the ServerApp; Flower closes it.
        num_clients: how many partitions there are.
        patience: seconds until each partition must have a SuperNode.
        say: told how many are there until all are, and of SuperNodes that do not fit.
        fixed: no other SuperNodes will come in place of those that refuse.

    Attributes:
        on_reply: called in the server's thread for each reply as it arrives.
        refusals: why SuperNodes do not take part.
    """

    def __init__(
        self, inner: Grid, num_clients: int, patience: float, say: Callable[[str], None], fixed: bool = False
    ) -> None:
        self.on_reply: OnReply | None = None
        self.refusals: list[str] = []
        self._inner = inner
        self._num_clients = num_clients
        self._patience = patience
        self._say = say
        self._fixed = fixed
        self._begun = False
        self._asked: set[int] = set()
        self._unanswered: dict[str, int] = {}
        self._claims: dict[int, int] = {}
        self._holders: dict[int, int] = {}
        self._sent: dict[str, int] = {}

    def set_run(self, run: Run) -> None:
        self._inner.set_run(run)

    @property
    def run(self) -> Run:
        return self._inner.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Ids of the partitions whose SuperNodes are there and have said so; the first call waits for all of them.

        Raises:
            RunError: some did not come, and why SuperNodes refused.
        """
        if not self._begun:
            self._wait()
            self._begun = True
        return self._here()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        numbers = [message.metadata.dst_node_id for message in messages]
        for message in messages:
            message.metadata.dst_node_id = self._holders[message.metadata.dst_node_id]
        accepted = [name for name in self._inner.push_messages(messages) if name]
        names = [message.metadata.message_id for message in messages]
        self._sent |= dict(zip(names, numbers, strict=True))
        return accepted

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        pulled = {name: self._pull(name) for name in message_ids}
        return [self._numbered(name, reply) for name, reply in pulled.items() if reply is not None]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | int | None = None) -> Iterable[Message]:
        sent = list(messages)
        accepted = set(self.push_messages(sent))
        named = {message.metadata.message_id: message for message in sent}
        replies: dict[str, Message] = {}
        for name, message in named.items():
            if name not in accepted:
                self._answer(replies, message, "the SuperLink did not take the message")
        start = time.monotonic()
        while missing := accepted - set(replies):
            spent = 0.0
            for name in missing:
                before = time.monotonic()
                if (reply := self._look(named[name])) is not None:
                    self._take(replies, name, reply)
                    spent += time.monotonic() - before
            left = math.inf if timeout is None else start + timeout - time.monotonic()
            if left <= 0:
                break
            if missing - set(replies):
                time.sleep(min(left, max(SECONDS_BETWEEN_LOOKS, LOOKS_A_PAUSE * spent)))
        for name, message in named.items():
            if name not in replies:
                self._answer(replies, message, f"{LATE}: no reply within {timeout:g} s")
        return [replies[name] for name in named]

    def close(self) -> None:
        """Flower closes its Grid itself."""

    def _wait(self) -> None:
        start, before = time.monotonic(), -1
        while (count := len(self._here())) < self._num_clients:
            if count != before:
                self._say(f"{count} of {self._num_clients} clients are there")
                before = count
            waited = time.monotonic() - start
            if waited > self._patience or (self._fixed and self.refusals):
                missing = f"{count} of num_clients={self._num_clients} clients came within {waited:.0f} s"
                raise RunError("; ".join([missing, *self.refusals[:REFUSALS_TOLD]]))
            time.sleep(SECONDS_BETWEEN_LOOKS)
        self._say(f"all {self._num_clients} clients are there")

    def _here(self) -> list[int]:
        present = set(self._inner.get_node_ids())
        self._asked &= present
        self._unanswered = {name: node for name, node in self._unanswered.items() if node in present}
        self._ask(sorted(present - self._asked))
        self._hear()
        here: dict[int, int] = {}
        answered = present.difference(self._unanswered.values())
        for node, partition in self._claims.items():
            if node in answered:
                here.setdefault(node_id_of(partition), node)
        self._holders |= here
        return sorted(here)

    def _answer(self, replies: dict[str, Message], message: Message, reason: str) -> None:
        reply = Message(Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, reason), reply_to=message)
        self._take(replies, message.metadata.message_id, reply)

    def _look(self, message: Message) -> Message | None:
        """The reply to it, if it is there; an error where it cannot be unpacked, or may be kept at the SuperLink."""
        try:
            reply = self._pull(message.metadata.message_id)
        except MalformedReply as fault:
            return Message(Error(ErrorCode.UNKNOWN, f"{MALFORMED}: {fault}"), reply_to=message)
        if reply is not None and reply.has_error() and reply.error.code in UNAVAILABLE:
            return Message(Error(reply.error.code, f"{LATE}: {reply.error.reason}"), reply_to=message)
        return reply

    def _pull(self, name: str) -> Message | None:
        """By itself: of several replies that are pulled together Flower unpacks all or none.

        Raises:
            MalformedReply: it cannot be unpacked.
        """
        try:
            return next(iter(self._inner.pull_messages([name])), None)
        except (OSError, HTTPError, MemoryError):  # of this machine, or of the way to the SuperLink
            raise
        except Exception as error:
            raise MalformedReply(f"it cannot be unpacked ({type(error).__name__})") from error

    def _take(self, replies: dict[str, Message], name: str, reply: Message) -> None:
        replies[name] = self._numbered(name, reply)
        if self.on_reply is not None:
            self.on_reply(reply)

    def _numbered(self, name: str, reply: Message) -> Message:
        """The reply to the message of this name, and its sender, by what was asked, not by what it says of itself."""
        # Flower has no public setters for them.
        reply.metadata.__dict__.update(_reply_to_message_id=name, _src_node_id=self._sent.pop(name))
        return reply

    def _ask(self, nodes: list[int]) -> None:
        questions = [Message(RecordDict(), node, MessageType.QUERY) for node in nodes]
        if not questions:
            return
        accepted = set(self._inner.push_messages(questions))
        asked = {one.metadata.message_id: one.metadata.dst_node_id for one in questions}
        self._unanswered |= {name: node for name, node in asked.items() if name in accepted}
        self._asked |= set(self._unanswered.values())

    def _hear(self) -> None:
        for name, node in list(self._unanswered.items()):
            try:
                if (reply := self._pull(name)) is None:
                    continue
                partition = self._introduced(node, reply)
                if self._claims.get(node) != partition:  # it comes after those that have had it all along
                    self._claims.pop(node, None)
                self._claims[node] = partition
            except (KeyError, TypeError, ValueError) as error:
                self._claims.pop(node, None)
                reason = "".join(c for c in " ".join(str(error).split()) if c.isprintable())
                self.refusals.append(f"SuperNode {node}: {reason[-LONGEST_REASON:]}")
                self._warn(f"does not take part: {self.refusals[-1]}")
            del self._unanswered[name]

    def _introduced(self, node: int, reply: Message) -> int:
        """The partition that a SuperNode says it holds; ValueError where it refuses or says something else."""
        if reply.has_error():
            raise ValueError(reply.error.reason)
        record = reply.content[INTRODUCTION]
        if not isinstance(record, ConfigRecord):
            raise TypeError(f"its introduction is a {type(record).__name__}")
        if REFUSAL in record:
            raise ValueError(str(record[REFUSAL]))
        partition, version = record[PARTITION_ID], record[VERSION]
        if not isinstance(partition, int) or not 0 <= partition < self._num_clients:
            raise ValueError(f"{PARTITION_ID}={partition!r} is none of num_clients={self._num_clients}")
        if any(held == partition and other != node for other, held in self._claims.items()):
            self._warn(f"more than one SuperNode has {PARTITION_ID}={partition}; the first has it while it is there")
        if version != fedsim.__version__:
            self._warn(f"client {partition} runs fedsim {version!r:.40}, the server {fedsim.__version__}")
        return partition

    def _warn(self, text: str) -> None:
        logger.warning("%s", text)
        self._say(text)
