"""The two apps that Flower starts: on its simulation runtime, or on a SuperLink and SuperNodes.

A SuperNode starts a process for each message: what needs torch is imported by the message that needs it.
"""

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

import fedsim
from experiments.flower.settings import (
    INTRODUCTION,
    PARTITION_ID,
    REFUSAL,
    VERSION,
    client_config,
    faults_in_one_line,
    partition_id,
    server_config,
)
from fedsim.errors import RunError

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Rounds, attacks and the report, in a run folder on the machine of the ServerApp.

    Raises:
        RunError: why the run cannot go on, in one line.
    """
    with faults_in_one_line(context.run_config):
        config = server_config(context.run_config)
        from experiments.flower.serving import run_on_flower

        run_on_flower(config, grid)


@client_app.query()
def introduce(message: Message, context: Context) -> Message:
    """Says which partition this SuperNode is, or what is wrong with its settings."""
    try:
        with faults_in_one_line(context.run_config, context.node_config):
            config = client_config(context.run_config, context.node_config)
            number = partition_id(context.node_config, config.num_clients)
        record = ConfigRecord({PARTITION_ID: number, VERSION: fedsim.__version__})
    except RunError as refusal:
        # As an error it would arrive with a traceback, and on Flower's simulation runtime within two others.
        record = ConfigRecord({REFUSAL: str(refusal)})
    return Message(RecordDict({INTRODUCTION: record}), reply_to=message)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    return _trained(message, context)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return _trained(message, context)


def _trained(message: Message, context: Context) -> Message:
    from experiments.flower.training import answer

    with faults_in_one_line(context.run_config, context.node_config):
        return answer(message, context)
