"""One client after the other, by the code that runs in a federation, and what the server observes of each."""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from torch import Tensor

from clients.app import ClientRuntime
from experiments.engine.setup import Setup, prepare
from experiments.prior.settings import held_by_no_client
from experiments.studies.harness.weights import load_weights
from fedsim.data import ImageSet
from fedsim.ground_truth import GroundTruth
from fedsim.metrics.accuracy import mean_softmax
from fedsim.observation import Observation
from fedsim.settings.composition import Config

_public: dict[str, ImageSet] = {}
"""What no client holds, by the settings of the data: clients' pictures are looked through once in a process."""


class Client:
    """Shares gradients of an audit's pictures, with a server that has no copy of any client's.

    Args:
        config: of an audit.
        checkpoint: weights of the model with its defenses; None: as it is initialised.

    Attributes:
        runtime: the client's model and defenses.
    """

    def __init__(self, config: Config, checkpoint: Path | None = None) -> None:
        self.setup: Setup = prepare(config)
        data = self.setup.data
        settings = json.dumps([self.setup.config.data, self.setup.image_shape])
        if settings not in _public:
            _public[settings] = held_by_no_client(data)
        data.auxiliary = _public[settings]
        model = self.setup.model
        if checkpoint is not None:
            load_weights(model, checkpoint, self.setup.data.class_names)
        self.runtime = ClientRuntime(config, self.setup.data)
        self._state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        self._factory = self.setup.factory()

    def shares(self, positions: Sequence[int], number: int) -> tuple[Observation, GroundTruth, dict[str, float]]:
        """What the server observes, what it may not know, and what the defenses measured.

        Args:
            positions: of the client's pictures in the set.
            number: the client's; its draws depend on it.
        """
        sent = self.runtime.answer(self.setup.data.train.subset(positions), self._state, number)
        assert sent.truth is not None
        seen = self._factory.make(sent, self._state, self._probs)
        return seen, sent.truth, self.runtime.defenses.measurements()

    @cached_property
    def _probs(self) -> Tensor | None:
        """What label rules read of public pictures, where an attack asks for them."""
        setup = self.setup
        if not setup.wants_auxiliary or not len(setup.held):
            return None
        return mean_softmax(setup.model, setup.held, setup.normaliser, setup.config.client.training_mode)
