"""One client after the other, by the code that runs in a federation, and what the server observes of each."""

from collections.abc import Sequence
from pathlib import Path

from clients.app import ClientRuntime
from experiments.engine.setup import Setup, prepare
from experiments.studies.harness.weights import load_weights
from fedsim.ground_truth import GroundTruth
from fedsim.observation import Observation
from fedsim.settings.composition import Config


class Client:
    """Shares gradients of an audit's pictures.

    Args:
        config: of an audit.
        checkpoint: weights of the model with its defenses; None: as it is initialised.

    Attributes:
        runtime: the client's model and defenses.
    """

    def __init__(self, config: Config, checkpoint: Path | None = None) -> None:
        self.setup: Setup = prepare(config)
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
        return self._factory.make(sent, self._state), sent.truth, self.runtime.defenses.measurements()
