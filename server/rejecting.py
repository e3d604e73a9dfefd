"""Replies that no honest client sends, kept from everything else on the server."""

from collections.abc import Callable, Iterable, Sequence
from logging import getLogger

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedsim.wire.contents import config_records
from fedsim.wire.partial_sums import sum_size
from fedsim.wire.records import ARRAYS, CONFIG, METRICS, UPDATE
from fedsim.wire.reply_checks import MalformedReply, ReplyRules, check_evaluate_reply, check_train_reply
from fedsim.wire.reply_votes import Names, unlike, usual_names
from server.wrapping import StrategyWrapper

logger = getLogger(__name__)

LONGEST_REASON = 500
"""Characters of a client's own account of its failure."""

Check = Callable[[RecordDict, int | None], None]


class RejectMalformed(StrategyWrapper):
    """Turns a malformed reply into an error reply that says why; the round goes on with the others.

    It must be the outermost wrapper: whatever it wraps reads replies that are as an honest client's. That no client
    uses names of its own is settled by what most clients sent, since Flower's strategies refuse a round in which they
    differ. Updates that come back summed can only be checked where they were made: a Grid that does so says it by
    `checks_replies`, and in such a round its word is taken.

    Args:
        client_of: a client's number from its node id, where the Grid numbers its nodes; None: a client says itself who
            it is, and no two of a round may say the same.
    """

    def __init__(self, inner: Strategy, rules: ReplyRules, client_of: Callable[[int], int] | None = None) -> None:
        super().__init__(inner)
        self._rules = rules
        self._client_of = client_of
        self._start = ArrayRecord()
        self._checked = False

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._start = arrays
        messages = list(self.inner.configure_train(server_round, arrays, config, grid))
        instructions = config_records(messages[0].content).get(CONFIG) if messages else None
        self._checked = instructions is not None and sum_size(instructions) > 0 and _checks_replies(grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        screened = [_with_plain_error(reply) for reply in replies]
        if self._checked:
            for reply in screened:
                if reply.has_error() and reply.error.code == ErrorCode.UNKNOWN:
                    self._log(reply, reply.error.reason)
        else:
            screened = self._screen(screened, self._check_train)
            if self._client_of is None:
                screened = self._once_each(screened)
            screened = self._alike(screened, "metrics", lambda content: tuple(sorted(content[METRICS])))
            if self._rules.kind == "gradient":  # whole weights are completed where tensors are missing
                screened = self._alike(screened, "tensors", lambda content: tuple(sorted(content[ARRAYS])))
        return self.inner.aggregate_train(server_round, screened)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        screened = [_with_plain_error(reply) for reply in replies]
        screened = self._screen(screened, lambda content, _: check_evaluate_reply(content, self._rules))
        return self.inner.aggregate_evaluate(server_round, screened)

    def _check_train(self, content: RecordDict, client: int | None) -> None:
        check_train_reply(content, self._start, self._rules, client)

    def _screen(self, replies: Iterable[Message], check: Check) -> list[Message]:
        screened = []
        for reply in replies:
            client = None if self._client_of is None else self._client_of(reply.metadata.src_node_id)
            if not reply.has_error():
                try:
                    check(reply.content, client)
                except MalformedReply as fault:
                    reply = self._rejected(reply, str(fault))
            screened.append(reply)
        return screened

    def _once_each(self, replies: Iterable[Message]) -> list[Message]:
        """Of replies that claim the same partition the first alone."""
        claimed: dict[int, int] = {}
        screened = []
        for reply in replies:
            if not reply.has_error():
                node = reply.metadata.src_node_id
                partition = int(config_records(reply.content)[UPDATE]["partition-id"])  # type: ignore[arg-type]
                first = claimed.setdefault(partition, node)
                if first != node:
                    reply = self._rejected(reply, f"it claims partition {partition}, as node {first} does")
            screened.append(reply)
        return screened

    def _alike(self, replies: Sequence[Message], what: str, names_of: Callable[[RecordDict], Names]) -> list[Message]:
        """Rejects replies whose names are not those of most clients; one without any, of a silent client, may stay."""
        names = [() if reply.has_error() else names_of(reply.content) for reply in replies]
        usual = usual_names(names, fullest=what == "tensors")
        return [
            self._rejected(reply, unlike(what, found, usual)) if found and found != usual else reply
            for reply, found in zip(replies, names, strict=True)
        ]

    def _rejected(self, reply: Message, fault: str) -> Message:
        reason = f"malformed reply: {fault}"
        self._log(reply, reason)
        return _failed(reply, reason, ErrorCode.UNKNOWN)

    def _log(self, reply: Message, reason: str | None) -> None:
        node = reply.metadata.src_node_id
        who = f"node {node}" if self._client_of is None else f"client {self._client_of(node)}"
        logger.warning("%s: %s", who, reason)


def _checks_replies(grid: Grid) -> bool:
    return bool(getattr(grid, "checks_replies", False))


def _with_plain_error(reply: Message) -> Message:
    """The reply itself, unless it is an error whose reason could pass for more than one line of a log."""
    if not reply.has_error():
        return reply
    said = reply.error.reason
    reason = plain(said) if said else "no reason given"
    return reply if reason == said else _failed(reply, reason, reply.error.code)


def _failed(reply: Message, reason: str, code: int) -> Message:
    # Flower's own constructor for replies wants the message that was answered; its fields are those of the reply.
    return Message(error=Error(code, reason), metadata=reply.metadata)  # type: ignore[call-overload, no-any-return]


def plain(text: str, most: int = LONGEST_REASON) -> str:
    """A foreign text as one printable line of at most `most` characters."""
    flat = " ".join(text[: 4 * most].split())
    line = "".join(character if character.isprintable() else "?" for character in flat)
    return line if len(line) <= most else f"{line[: most - 1]}…"
