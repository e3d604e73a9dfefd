"""One message to one client: whatever it raises becomes an answer."""

import traceback
from logging import getLogger

from flwr.app import Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from fedsim.wire.contents import metric_records
from fedsim.wire.records import METRICS
from fedsim.wire.reply.values import MALFORMED

logger = getLogger(__name__)

FIRST_CLIENT_NODE_ID = 2
TOLD = "fedsim.told"
"""An attribute of errors that are made here; none that comes over a wire has it."""


def node_id_of(partition_id: int) -> int:
    return partition_id + FIRST_CLIENT_NODE_ID


def partition_of(node_id: int) -> int:
    return node_id - FIRST_CLIENT_NODE_ID


def error_reply(message: Message, reason: str, code: int = ErrorCode.CLIENT_APP_RAISED_EXCEPTION) -> Message:
    return Message(Error(code, reason), reply_to=message)


def malformed(message: Message, fault: str, told: RecordDict | None = None) -> Message:
    """What stands for a reply that no honest client sends.

    Args:
        told: what the reply held: its metrics are kept, since what a client released has reached the server.
    """
    error = error_reply(message, f"{MALFORMED}: {fault}", ErrorCode.UNKNOWN)
    metrics = None if told is None else metric_records(told).get(METRICS)
    if metrics is not None:
        error.__dict__[TOLD] = metrics
    return error


def told_by(error: Message) -> MetricRecord | None:
    """The metrics of the reply for which an error of `malformed` stands."""
    found = error.__dict__.get(TOLD)
    return found if isinstance(found, MetricRecord) else None


def deliver(app: ClientApp, message: Message, context: Context) -> Message:
    """Run the client; whatever it raises, and whatever is no answer to the message, becomes an error reply."""
    try:
        reply = app(message, context)
    except Exception as error:  # noqa: BLE001 - the client is foreign code: its faults are answers
        logger.warning("client %s raised:\n%s", context.node_config["partition-id"], traceback.format_exc())
        return error_reply(message, f"{type(error).__name__}: {error}")
    return reply if _answers(reply, message) else malformed(message, "it is no answer to what was asked")


def _answers(reply: object, message: Message) -> bool:
    """A reply that names another message would take the place of another client's."""
    if not isinstance(reply, Message):
        return False
    asked, answered = message.metadata, reply.metadata
    same = (answered.reply_to_message_id, answered.src_node_id) == (asked.message_id, asked.dst_node_id)
    return same and (reply.has_error() or isinstance(reply.content, RecordDict))
