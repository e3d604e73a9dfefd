"""Updates as clients really compute them, in this process."""

from collections.abc import Sequence

from clients.app import ClientRuntime
from fedsim.ground_truth import GroundTruth
from fedsim.observation import Observation
from fedsim.settings.composition import build_data
from fedsim.update import State
from tests.support.federation import settings


def observe_client(
    *overrides: str, positions: Sequence[int] = (0,), client: int = 0, state: State | None = None
) -> tuple[Observation, GroundTruth]:
    """One client's update as a server sees it, and what its model saw.

    Args:
        overrides: Hydra's, after those of an audit.
        positions: of its images in the data set.
        state: the global state; None: the model's initial one.
    """
    config = settings("audit", *overrides)
    runtime = ClientRuntime(config, build_data(config))
    initial = {name: tensor.detach().cpu().clone() for name, tensor in runtime.model.state_dict().items()}
    start = initial if state is None else state
    runtime.load(start)
    result = runtime.train(runtime.data.train.subset(list(positions)), client, 0, audit=True)
    sent = runtime.share(result, start, len(positions), client, 0)
    assert sent.truth is not None
    return runtime.onlooker.make(sent, start), sent.truth
