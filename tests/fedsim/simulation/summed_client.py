"""A client whose update is summed; Ray workers import it from the checkout."""

import os
import time

from flwr.app import Message
from flwr.clientapp import ClientApp

from fedsim.wire.records import CONFIG
from tests.fuzz.federation import honest


def make_client_app():
    """Client 0 of each round takes some seconds on a worker, where others can do what waits behind it."""
    app, server = ClientApp(), os.environ.get("RAY_JOB_ID") is None

    @app.train()
    def train(message, context):
        client = context.node_config["partition-id"]
        if client == 0 and not server:
            time.sleep(5)
        return Message(honest("delta", client), reply_to=message)

    return app


def make_deadly_client_app():
    """Where the instructions say so, client 3 ends its worker; in the server's process it raises."""
    app, server = ClientApp(), os.environ.get("RAY_JOB_ID") is None

    @app.train()
    def train(message, context):
        client = context.node_config["partition-id"]
        if client == 3 and message.content[CONFIG]["marker"] == "deadly":
            if server:
                raise RuntimeError("no")
            os._exit(1)
        return Message(honest("delta", client), reply_to=message)

    return app
