"""A round's replies, read once: into what clients shared, or into why a reply is none that an honest client sends."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from logging import getLogger

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode

from fedsim.bounds.privacy import is_budget
from fedsim.simulation.delivery import told_by
from fedsim.wire.contents import metric_records
from fedsim.wire.records import METRICS, UPDATE, Contribution
from fedsim.wire.reply.checks import ReplyRules, check_evaluate_reply, is_measurement, read_train_reply
from fedsim.wire.reply.values import MALFORMED, MalformedReply, shown
from fedsim.wire.reply.votes import Names, unlike, usual_names

logger = getLogger(__name__)

LONGEST_REASON = 500
"""Characters of a client's own account of its failure."""


@dataclass(frozen=True)
class Reply:
    """What came back from one node.

    Attributes:
        message: for the user's strategy; an error where the node failed, or sent what no honest client sends.
        sent: what its client shared, in the message's own memory, which may be read-only; None where the message is an
            error, or the update was summed where it was made.
        refused: of a reply that was refused here what its defenses measured, and who sent it: what the client released
            reached the server all the same.
    """

    message: Message
    sent: Contribution | None = None
    refused: Message | None = None


class Screening:
    """Reads replies, and turns a malformed one into an error that says why; the round goes on with the others.

    That no client uses names of its own is settled by what most clients sent, since Flower's strategies refuse a round
    in which they differ. Updates that come back summed can only be checked where they were made.

    Args:
        rules: None: every reply is taken as it is.
        client_of: a client's number from its node id: that of the partition which it must say that it is.
    """

    def __init__(self, rules: ReplyRules | None = None, client_of: Callable[[int], int] = int) -> None:
        self._rules = rules
        self._client_of = client_of

    def train(
        self, messages: Iterable[Message], start: ArrayRecord, server_round: int = 0, checked: bool = False
    ) -> list[Reply]:
        """Replies to instructions to train from `start`.

        Args:
            checked: they were checked where they were made, before they were summed: the Grid's word is taken.
        """
        rules = None if checked else self._rules
        read = partial(read_train_reply, server_round=server_round, start=start, rules=rules)
        replies = [self._read(message, read) for message in messages]
        if rules is None:
            return replies
        replies = self._alike(replies, "metrics", lambda sent: sent.metrics)
        if rules.kind == "gradient":  # whole weights are completed where tensors are missing
            replies = self._alike(replies, "tensors", lambda sent: (*sent.update.tensors, *sent.update.buffers))
        return replies

    def evaluate(self, messages: Iterable[Message]) -> list[Message]:
        """Replies to instructions to evaluate."""
        if (rules := self._rules) is None:
            return list(messages)
        return [
            self._read(one, lambda content, client: check_evaluate_reply(content, rules)).message for one in messages
        ]

    def _read(self, message: Message, read: Callable[..., Contribution | None]) -> Reply:
        told = told_by(message)
        message = _with_plain_error(message)
        if message.has_error():
            if message.error.code == ErrorCode.UNKNOWN:
                self._log(message, message.error.reason)
            return Reply(message, refused=None if told is None else self._told(message, told))
        try:
            return Reply(message, read(message.content, client=self._client_of(message.metadata.src_node_id)))
        except MalformedReply as fault:
            return self._rejected(message, str(fault))
        except (KeyError, TypeError, ValueError) as error:
            if self._rules is not None:
                return self._rejected(message, f"it cannot be read: {shown(str(error))}")
            self._log(message, f"it sent no update that can be read: {error}")
            return Reply(message)

    def _alike(
        self, replies: Sequence[Reply], what: str, names_of: Callable[[Contribution], Iterable[str]]
    ) -> list[Reply]:
        """Rejects replies whose names are not those of most clients; one without any, of a silent client, may stay."""
        names: list[Names] = [() if one.sent is None else tuple(sorted(names_of(one.sent))) for one in replies]
        counting = () if self._rules is None else self._rules.counting
        usual = usual_names(names, what == "tensors", counting)
        return [
            self._rejected(reply.message, unlike(what, own, usual)) if own and own != usual else reply
            for reply, own in zip(replies, names, strict=True)
        ]

    def _rejected(self, message: Message, fault: str) -> Reply:
        reason = f"{MALFORMED}: {fault}"
        self._log(message, reason)
        return Reply(
            _failed(message, reason, ErrorCode.UNKNOWN),
            refused=self._told(message, metric_records(message.content).get(METRICS)),
        )

    def _told(self, reply: Message, metrics: MetricRecord | None) -> Message:
        """Whose it is says the Grid alone: a reply that is refused may claim to come from another."""
        kept = RecordDict()
        if metrics is not None and (rules := self._rules) is not None:
            kept[METRICS] = MetricRecord({n: value for n, value in metrics.items() if _counts(n, rules)})
        kept[UPDATE] = ConfigRecord({"partition-id": self._client_of(reply.metadata.src_node_id)})
        return Message(kept, metadata=reply.metadata)  # type: ignore[call-overload, no-any-return]

    def _log(self, message: Message, reason: str | None) -> None:
        logger.warning("client %s: %s", self._client_of(message.metadata.src_node_id), reason)


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


def _counts(name: str, rules: ReplyRules) -> bool:
    """Whether a metric can be of a defense that runs, and a privacy budget of one that counts it."""
    by_one = any(name.startswith(f"{defense}_") for defense in rules.counting)
    return is_measurement(name, rules) and (by_one or not is_budget(name))
