"""A client whose update is summed; Ray workers import it from the checkout."""

import time

from flwr.app import Message
from flwr.clientapp import ClientApp

from tests.fuzz.federation import honest


def make_client_app():
    """Client 0 of each round takes some seconds."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        client = context.node_config["partition-id"]
        if client == 0:
            time.sleep(5)
        return Message(honest("delta", client), reply_to=message)

    return app
