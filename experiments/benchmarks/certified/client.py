"""One client by the code that runs in a federation, and what the server observes of it."""

from dataclasses import replace
from functools import cache

from clients.app import ClientRuntime
from defenses.base import Plan
from defenses.compose import build_chain
from experiments.benchmarks.certified.defended import defense_config
from experiments.benchmarks.certified.images import ImagePool
from experiments.benchmarks.certified.models import fill, model_config
from experiments.benchmarks.certified.protocols import client_config
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
from fedsim.wire.records import Contribution, to_arrays
from fedsim.wire.reply_checks import check_shared
from server.sums.summing import RunningSum


@cache
def _audit() -> AuditConfig:
    """An audit's settings, of which client, model and defense are replaced."""
    return parse(AuditConfig, load_config("audit"))


class StatedClient:
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
        self._setup = Setup(config, pool, defenses, architecture, built, Normaliser(built), wants_auxiliary=False)
        self._runtime = ClientRuntime(config, pool)
        self._state = {name: tensor.detach().clone() for name, tensor in built.state_dict().items()}
        self._start = to_arrays(self._state)
        self._rules = self._setup.rules(simulated=False)
        self._factory = self._setup.factory()

    def shares(self, images: ImageSet, number: int) -> tuple[Observation, GroundTruth]:
        """What the server observes of this batch, and what it may not know; under secure aggregation a sum of two.

        Args:
            number: the client's; its draws depend on it.

        Raises:
            MalformedReply: no server would take it.
            ConfigError: one image, which has no sum.
        """
        if (sums := self._setup.sums) is None:
            seen = self._shared(images, number)
        else:
            if len(images) < 2:
                raise ConfigError("client.batch_size", len(images), "2 images or more to sum over two clients")
            total, half = RunningSum(sums.by), (len(images) + 1) // 2
            total.add(self._shared(images.subset(range(half)), 2 * number))
            total.add(self._shared(images.subset(range(half, len(images))), 2 * number + 1))
            seen = total.result()
        assert seen.truth is not None
        return self._factory.make(replace(seen, client=number), self._state), seen.truth

    def _shared(self, images: ImageSet, number: int) -> Contribution:
        runtime = self._runtime
        runtime.load(self._state)
        result = runtime.train(images, number, server_round=0, audit=True)
        sent = runtime.share(result, self._state, len(images), number, server_round=0)
        check_shared(sent.update, self._start, self._rules)
        return sent
