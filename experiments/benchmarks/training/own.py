"""fedsim's own ways: a client as it is on a worker, and a round of the server's `Rounds` on a Grid."""

from collections.abc import Callable

from hydra.utils import instantiate

from experiments.engine.setup import Setup
from experiments.run.command import make_grid
from fedsim.determinism import kept_globals
from fedsim.simulation import partition_of
from fedsim.update import State
from fedsim.wire.records import from_arrays, to_arrays
from server.rounds import Rounds, WorkerSums
from server.screening import Screening


def client(setup: Setup) -> Callable[[], list[State]]:
    """Load, train, share: of all clients, and the weights of each."""
    runtime = setup.runtime()
    start = {name: tensor.clone() for name, tensor in setup.model.state_dict().items()}

    def train() -> list[State]:
        ends: list[State] = []
        with kept_globals():  # as a Grid does
            for number in range(setup.run_config.num_clients):
                images = setup.data.client(number)
                runtime.load(start)
                result = runtime.train(images, number, 1, changes=False)
                ends.append(runtime.share(result, start, len(images), number, 1).update.tensors)
        return ends

    return train


def federation(setup: Setup) -> Callable[[], State]:
    """A round on the Grid of the settings; the model that follows."""
    strategy = instantiate(setup.run_config.strategy, _recursive_=False, _convert_="all")
    screening = Screening(setup.rules(simulated=True), partition_of)
    rounds = Rounds(strategy, screening=screening, worker_sums=WorkerSums(), client_of=partition_of)
    grid, start = make_grid(setup), to_arrays(setup.model.state_dict())
    return lambda: from_arrays(rounds.train(1, start, grid))
