"""One message to one client: whatever it raises becomes an answer."""

import traceback
from logging import getLogger

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

logger = getLogger(__name__)


def error_reply(message: Message, reason: str, code: int = ErrorCode.CLIENT_APP_RAISED_EXCEPTION) -> Message:
    return Message(Error(code, reason), reply_to=message)


def deliver(app: ClientApp, message: Message, context: Context) -> Message:
    """Run the client; whatever it raises becomes an error reply, as on a SuperNode."""
    try:
        return app(message, context)
    except Exception as error:  # noqa: BLE001 - the client is foreign code: its faults are answers
        logger.warning("client %s raised:\n%s", context.node_config["partition-id"], traceback.format_exc())
        return error_reply(message, f"{type(error).__name__}: {error}")
