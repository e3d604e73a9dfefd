"""A client on a SuperNode: the simulation's own, with the SuperNode's settings."""

from functools import lru_cache

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients.app import build_client_app
from experiments.flower.settings import OVERRIDES, client_config
from fedsim.data import FederatedData, ImageSet
from fedsim.determinism import torch_threads
from fedsim.settings.composition import build_source, image_side


class OwnImages(FederatedData):
    """A client that holds all training pictures of its source, whatever its number."""

    def client(self, partition_id: int) -> ImageSet:
        return self.train


def answer(message: Message, context: Context) -> Message:
    """Train or evaluate with the torch threads of a simulated client: they are part of the bits.

    Raises:
        ConfigFault: the settings of the run or of the SuperNode cannot work.
    """
    overrides = (str(settings.get(OVERRIDES, "")) for settings in (context.run_config, context.node_config))
    app, own_threads = _prepared(*overrides)
    with torch_threads(own_threads):
        return app(message, context)


@lru_cache(maxsize=1)
def _prepared(run_overrides: str, node_overrides: str) -> tuple[ClientApp, int]:
    """The client with what it keeps between messages, and its torch threads."""
    config = client_config({OVERRIDES: run_overrides}, {OVERRIDES: node_overrides})
    own = None if config.partition else OwnImages(build_source(config.data), None, image_side(config.model))
    return build_client_app(config, own), config.simulation.threads
