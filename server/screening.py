"""Replies that no honest client sends, kept from everything else on the server."""

from collections.abc import Callable, Iterable, Sequence
from logging import getLogger

from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from fedsim.wire.contents import config_records
from fedsim.wire.records import ARRAYS, METRICS, UPDATE
from fedsim.wire.reply_checks import MalformedReply, ReplyRules, check_evaluate_reply, check_train_reply
from fedsim.wire.reply_votes import Names, unlike, usual_names

logger = getLogger(__name__)

LONGEST_REASON = 500
"""Characters of a client's own account of its failure."""

Check = Callable[[RecordDict, int | None], None]


class Screening:
    """Turns a malformed reply into an error reply that says why; the round goes on with the others.

    That no client uses names of its own is settled by what most clients sent, since Flower's strategies refuse a round
    in which they differ. Updates that come back summed can only be checked where they were made.

    Args:
        client_of: a client's number from its node id, where the Grid numbers its nodes; None: a client says itself who
            it is, and no two of a round may say the same.
    """

    def __init__(self, rules: ReplyRules, client_of: Callable[[int], int] | None = None) -> None:
        self._rules = rules
        self._client_of = client_of

    def train(self, replies: Iterable[Message], start: ArrayRecord, checked: bool = False) -> list[Message]:
        """Replies to instructions to train from `start`.

        Args:
            checked: they were checked where they were made, before they were summed: the Grid's word is taken.
        """
        screened = [_with_plain_error(reply) for reply in replies]
        if checked:
            for reply in screened:
                if reply.has_error() and reply.error.code == ErrorCode.UNKNOWN:
                    self._log(reply, reply.error.reason)
            return screened
        screened = self._screen(screened, lambda content, who: check_train_reply(content, start, self._rules, who))
        if self._client_of is None:
            screened = self._once_each(screened)
        screened = self._alike(screened, "metrics", lambda content: tuple(sorted(content[METRICS])))
        if self._rules.kind == "gradient":  # whole weights are completed where tensors are missing
            screened = self._alike(screened, "tensors", lambda content: tuple(sorted(content[ARRAYS])))
        return screened

    def evaluate(self, replies: Iterable[Message]) -> list[Message]:
        screened = [_with_plain_error(reply) for reply in replies]
        return self._screen(screened, lambda content, _: check_evaluate_reply(content, self._rules))

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
            self._rejected(reply, unlike(what, own, usual)) if own and own != usual else reply
            for reply, own in zip(replies, names, strict=True)
        ]

    def _rejected(self, reply: Message, fault: str) -> Message:
        reason = f"malformed reply: {fault}"
        self._log(reply, reason)
        return _failed(reply, reason, ErrorCode.UNKNOWN)

    def _log(self, reply: Message, reason: str | None) -> None:
        node = reply.metadata.src_node_id
        who = f"node {node}" if self._client_of is None else f"client {self._client_of(node)}"
        logger.warning("%s: %s", who, reason)


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
