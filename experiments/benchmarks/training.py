"""What a federated round costs beside the local training itself: a bare torch loop and fedsim's clients, in turn.

python -m experiments.benchmarks.training                                  digits on vit_nano, 40 clients, batches of 16
python -m experiments.benchmarks.training --model vit_tiny_4_32 --clients 8 --passes 10
python -m experiments.benchmarks.training 'defense=[mjp]' client.local_epochs=2

All train the same clients from the same weights on the same batches, in one process with one thread; a pass is one
round of all clients. The bare loop holds all images as the model reads them, loads the weights, takes torch's SGD and
copies the weights. *client* is `ClientRuntime`: load, train, share. *round* is a round of `Rounds` on the Grid in this
process: messages, checks, sums. Figures are ratios to the bare loop's pass beside it, of processor time. Without a
defense all end in the same bits, or the command fails. Further words are settings of fedsim; the optimiser is SGD.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from experiments.engine.setup import Setup
    from fedsim.settings.commands import RunConfig
    from fedsim.update import State

Pass = Callable[[], "list[State]"]
"""Trains all clients; the weights of each, or their mean alone."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_nano", help="name of conf/model")
    parser.add_argument("--clients", type=int, default=40, help="that train in a pass")
    parser.add_argument("--batch", type=int, default=16, help="images of a step")
    parser.add_argument("--passes", type=int, default=30, help="of all clients, for each way")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings of fedsim, such as defense=[mjp]")
    return parser.parse_args()


def main() -> None:
    """One row for each way to train; the bare loop against itself shows the noise."""
    arguments = _arguments()

    import logging

    import torch

    from experiments.engine.setup import prepare
    from experiments.python.load_config import load_config
    from fedsim.memory.kept import settled
    from fedsim.simulation.ray_cluster import quiet_environment

    quiet_environment()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    common = ["strategy=fedavg", "simulation=inline", "attack=[]", "audit=false", f"num_clients={arguments.clients}"]
    words = [*common, f"model={arguments.model}", f"client.batch_size={arguments.batch}", *arguments.settings]
    setup = prepare(load_config("run", *words))
    ways = {"bare": _bare(setup), "bare again": _bare(setup), "client": _client(setup), "round": _round(setup)}
    if not setup.config.defense:
        sizes = setup.data.partition_sizes()
        _check_bits({name: way() for name, way in ways.items()}, sizes)
    with settled():  # as a run does
        seconds = _in_turn(ways, arguments.passes)
    steps = sum(len(_orders(setup, client)) for client in range(arguments.clients))
    print(f"{' '.join(words[4:])}: {arguments.clients} clients, {steps} steps in a pass, {arguments.passes} passes")
    print("| way | ms a step | ratio to bare | quartiles |")
    print(f"|{' --- |' * 4}")
    for name, own in seconds.items():
        ratios = [one / other for one, other in zip(own, seconds["bare"], strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4)
        print(f"| {name} | {1e3 * statistics.median(own) / steps:.2f} | {median:.3f} | {low:.3f} to {high:.3f} |")


def _in_turn(ways: dict[str, Pass], passes: int) -> dict[str, list[float]]:
    """Seconds of each pass; who goes first changes from one to the next."""
    names = list(ways)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(passes + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            start = time.process_time()
            ways[name]()
            if number:  # the first is a warm-up
                seconds[name].append(time.process_time() - start)
    return seconds


def _check_bits(ends: "dict[str, list[State]]", sizes: list[int]) -> None:
    """Refuse to compare what is not the same training; a mean of weights may differ by its rounding."""
    import torch

    def close(one: "State", other: "State", rtol: float) -> bool:
        return all(torch.allclose(tensor, other[name], rtol, atol=rtol) for name, tensor in one.items())

    for name in ("bare again", "client"):
        if not all(close(one, other, 0.0) for one, other in zip(ends["bare"], ends[name], strict=True)):
            raise SystemExit(f"{name}: other weights than the bare loop's")
    (end,) = ends["round"]
    shares = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
    each = {name: torch.stack([one[name] for one in ends["client"]]).double() for name in end}
    mean = {name: torch.tensordot(shares, stacked, dims=1).to(end[name]) for name, stacked in each.items()}
    if not close(end, mean, 1e-5):
        raise SystemExit("round: another mean than that of the clients' weights")


def _config(setup: "Setup") -> "RunConfig":
    from fedsim.settings.commands import RunConfig

    assert isinstance(setup.config, RunConfig)
    return setup.config


def _orders(setup: "Setup", client: int) -> "list[torch.Tensor]":
    """Indices of the client's batches."""
    from clients.training import batches
    from fedsim.determinism import torch_generator

    settings, count = setup.config.client, len(setup.data.client(client))
    rng = torch_generator(setup.config.seed, "client", 1, client)
    return list(batches(count, settings.batch_size, settings.local_epochs, settings.local_steps, rng))


def _bare(setup: "Setup") -> Pass:
    import torch
    from torch.nn import functional as F

    model = setup.runtime().model.train(setup.config.client.training_mode)
    names, parameters = zip(*model.named_parameters(), strict=True)
    weights: list[torch.Tensor] = list(parameters)
    start = [weight.detach().clone() for weight in weights]
    held = [setup.data.client(client) for client in range(_config(setup).num_clients)]
    inputs = [setup.normaliser(images.images(range(len(images)))) for images in held]
    orders = [_orders(setup, client) for client in range(len(held))]
    settings = {name: value for name, value in setup.config.client.optimizer.items() if name != "_target_"}

    def train() -> "list[State]":
        ends: list[State] = []
        for images, own, order in zip(inputs, held, orders, strict=True):
            with torch.no_grad():
                torch._foreach_copy_(weights, start)
            optimizer = torch.optim.SGD(weights, **settings)
            for indices in order:
                optimizer.zero_grad()
                F.cross_entropy(model(images[indices]), own.labels[indices]).backward()
                optimizer.step()
            ends.append({name: weight.detach().clone() for name, weight in zip(names, weights, strict=True)})
        return ends

    return train


def _client(setup: "Setup") -> Pass:
    runtime = setup.runtime()
    start = {name: tensor.clone() for name, tensor in setup.model.state_dict().items()}

    def train() -> "list[State]":
        ends: list[State] = []
        for client in range(_config(setup).num_clients):
            images = setup.data.client(client)
            runtime.load(start)
            result = runtime.train(images, client, 1)
            ends.append(runtime.share(result, start, len(images), client, 1).update.tensors)
        return ends

    return train


def _round(setup: "Setup") -> Pass:
    from hydra.utils import instantiate

    from experiments.run.command import make_grid
    from fedsim.simulation import partition_of
    from fedsim.wire.records import from_arrays, to_arrays
    from server.rounds import Rounds, WorkerSums
    from server.screening import Screening

    strategy = instantiate(_config(setup).strategy, _recursive_=False, _convert_="all")
    screening = Screening(setup.rules(simulated=True), partition_of)
    rounds = Rounds(strategy, screening=screening, worker_sums=WorkerSums(), client_of=partition_of)
    grid, start = make_grid(setup), to_arrays(setup.model.state_dict())
    return lambda: [from_arrays(rounds.train(1, start, grid))]


if __name__ == "__main__":
    main()
