"""One client by the code that runs in a federation, and what the server observes of it."""

from dataclasses import replace
from functools import cache

from defenses.base import Plan
from defenses.compose import build_chain
from experiments.benchmarks.certified.defended import defense_config
from experiments.benchmarks.certified.images import ImagePool
from experiments.benchmarks.certified.models import fill, model_config
from experiments.benchmarks.certified.protocols import client_config
from experiments.engine.audited import AuditedClients
from experiments.engine.setup import Setup
from experiments.python.load_config import load_config
from fedsim.data import ImageSet
from fedsim.errors import ConfigError
from fedsim.ground_truth import GroundTruth
from fedsim.models import Architecture, Normaliser, architecture_seed
from fedsim.observation import Observation
from fedsim.settings.commands import AuditConfig
from fedsim.settings.composition import build_spec
from fedsim.settings.groups import ClientSettings
from fedsim.settings.schema import parse, plain
from fedsim.update import State


@cache
def _audit() -> AuditConfig:
    """An audit's settings, of which client, model and defense are replaced."""
    return parse(AuditConfig, load_config("audit"))


class StatedClient(AuditedClients):
    """A model in one state behind one defense and protocol; batch after batch.

    Raises:
        ConfigError: these do not go together.
    """

    def __init__(
        self, model: str, weights: State, defense: str, protocol: str, batch_size: int, pool: ImagePool
    ) -> None:
        config = replace(
            _audit(),
            model=model_config(model),
            defense=defense_config(defense),
            client=parse(ClientSettings, client_config(protocol, batch_size)),
        )
        defenses = build_chain(config.defense)
        architecture = Architecture(build_spec(config.model, pool), (defenses,), architecture_seed(0))
        built = architecture.build()
        fill(built, weights)
        defenses.check(Plan(built, plain(config.client), {}, defenses.defenses))
        super().__init__(Setup(config, pool, defenses, architecture, built, Normaliser(built), wants_auxiliary=False))

    def shares(self, images: ImageSet, number: int) -> tuple[Observation, GroundTruth]:
        """What the server observes of this batch, and what it may not know; under secure aggregation a sum of two.

        Args:
            number: the client's; its draws depend on it.

        Raises:
            MalformedReply: no server would take it.
            ConfigError: one image, which has no sum.
        """
        if self._setup.sums is None:
            return self.observe([images], number, number)
        if len(images) < 2:
            raise ConfigError("client.batch_size", len(images), "2 images or more to sum over two clients")
        half = (len(images) + 1) // 2
        halves = [images.subset(range(half)), images.subset(range(half, len(images)))]
        return self.observe(halves, 2 * number, number)
