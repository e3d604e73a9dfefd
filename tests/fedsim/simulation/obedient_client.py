"""A client that does as it is told; Ray workers import it from the checkout."""

import os
import signal
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp


def make_client_app():
    """Answers with its partition id; does what the message's `order` says to the partition in `who`."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        config = message.content["config"]
        client = context.node_config["partition-id"]
        if client in config["who"]:
            if config["order"] == "raise":
                raise RuntimeError("no more pictures")
            if config["order"] == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if config["order"] == "die-once" and not Path(config["marker"]).exists():
                Path(config["marker"]).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if config["order"] == "hang":
                time.sleep(600)
            if config["order"] == "slow":  # until it is told to go on
                end = time.monotonic() + 120
                while not Path(config["marker"]).exists() and time.monotonic() < end:
                    time.sleep(0.05)
        visits = context.state.config_records.get("memory", ConfigRecord({"visits": 0}))["visits"] + 1
        if config["order"] == "remember":
            context.state["memory"] = ConfigRecord({"visits": visits})
        if config["order"] == "slow-first" and client == 0:
            time.sleep(0.3)
        return Message(RecordDict({"m": MetricRecord({"client": client, "visits": visits})}), reply_to=message)

    return app
