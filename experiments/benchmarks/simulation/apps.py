"""Apps of the simulation benchmark: clients that do nothing, and a server that averages; the same on every engine."""

import os
import time
from functools import lru_cache
from itertools import pairwise
from statistics import median

import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from experiments.benchmarks.processor import seconds_of_tree
from fedsim.update import LocalProtocol, State, Update
from fedsim.wire.contents import array_records
from fedsim.wire.records import ARRAYS, Contribution, DecodedState, to_arrays, to_reply
from server.rounds import Rounds, WorkerSums

PROTOCOL = LocalProtocol(batch_size=1, steps=1, optimizer="sgd", lrs=(0.1,))


def make_state(parameters: int, tensors: int) -> State:
    """`parameters` numbers in `tensors` tensors."""
    rng = torch.Generator().manual_seed(0)
    sizes = [parameters // tensors + (n < parameters % tensors) for n in range(tensors)]
    return {f"t{n}": torch.randn(size, generator=rng) for n, size in enumerate(sizes)}


def train(state: State) -> dict[str, Tensor]:
    """A client's whole work: a new update, so that no engine can send the same memory twice."""
    return {name: tensor + 1.0 for name, tensor in state.items()}


def make_client_app() -> ClientApp:
    """Decodes the global state, makes an update, shares it: what every fedsim client does around its training."""
    app = ClientApp()
    decoded = DecodedState()

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        state = decoded.get(array_records(message.content)[ARRAYS])
        update = Update(train(state), "weights", 1)
        client = int(context.node_config["partition-id"])
        return Message(to_reply(Contribution(update, PROTOCOL, client)), reply_to=message)

    return app


class RoundClock:
    """When each round ended, and what processor time had gone into it by then."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.marks: list[float] = []
        self.cpu: list[tuple[float, float]] = []

    def __call__(self, server_round: int, arrays: ArrayRecord) -> None:
        self.marks.append(time.perf_counter())
        self.cpu.append((time.process_time(), seconds_of_tree(os.getpid(), itself=False)))

    @property
    def first(self) -> float:
        """Seconds until the end of the first round, with everything that happens only once."""
        return self.marks[1] - self.start

    @property
    def round(self) -> float:
        """Seconds of a later round: their median."""
        return median(after - before for before, after in pairwise(self.marks[1:]))

    @property
    def processor(self) -> tuple[float, float]:
        """Seconds of a later round, of this process and of those that it started: the mean, of all their threads."""
        rounds = len(self.cpu) - 2
        (own, others), (own_end, others_end) = self.cpu[1], self.cpu[-1]
        return (own_end - own) / rounds, (others_end - others) / rounds


def make_server_app(
    parameters: int, tensors: int, rounds: int, watch: RoundClock, observed: bool | None, clients: int
) -> ServerApp:
    """FedAvg over all clients, without evaluation.

    Args:
        observed: ask the Grid for sums of updates, and for every update besides (True) or for none (False); None: for
            updates, which Flower's FedAvg adds up.
        clients: wait for so many: Flower's engine starts before all of them are there.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=clients)
        sums = WorkerSums(lambda server_round, nodes: nodes if observed else ())
        federation = Rounds(strategy, worker_sums=None if observed is None else sums)
        arrays = to_arrays(make_state(parameters, tensors))
        watch(0, arrays)
        for server_round in range(1, rounds + 1):
            arrays = federation.train(server_round, arrays, grid)
            watch(server_round, arrays)

    return app


@lru_cache(maxsize=1)
def flower_client_app() -> ClientApp:
    """One for each process of Flower's engine, which pickles the app with every message unless it is found by name."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    return make_client_app()


class FlowerClientApp(ClientApp):
    """Small to pickle: the app itself is made where it runs."""

    def __call__(self, message: Message, context: Context) -> Message:
        return flower_client_app()(message, context)
