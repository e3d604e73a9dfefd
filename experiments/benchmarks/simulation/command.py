"""Every engine on every case, each in a process of its own."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable

import torch
from flwr.app import ArrayRecord

from experiments.benchmarks.simulation.apps import (
    FlowerClientApp,
    RoundClock,
    make_client_app,
    make_server_app,
    make_state,
    train,
)
from fedsim.memory.kept import keep_memory, settled
from fedsim.memory.peak import peak_memory
from fedsim.simulation.ray_cluster import quiet_environment, ray_cluster

OBSERVED = {"whole": None, "observed": True, "sums": False, "inline": False}
TENSORS = {100_000: 10, 5_000_000: 150, 22_000_000: 150}
UNITS = {"k": 1_000, "M": 1_000_000}


def run(arguments: argparse.Namespace) -> None:
    """The table; `--one` runs one case and prints its figures, and is called by the table itself."""
    if arguments.one is not None:
        engine, case = arguments.one
        print(json.dumps(measure(engine, *parse(case), arguments.workers, arguments.rounds)))
        return
    failed = False
    for case in arguments.cases:
        figures = {engine: _in_process(engine, case, arguments) for engine in arguments.engines}
        print(
            f"\n{case}: ms per message | against Flower's engine | CPU ms: server, workers | first round, s | peak, MiB"
        )
        for engine, figure in figures.items():
            if figure is None:
                failed = True
                print(f"  {engine:7} failed")
                continue
            flower = figures.get("flower")
            ratio = f"{flower['ms'] / figure['ms']:6.1f}x" if flower else "      -"
            cpu = f"{figure['server']:8.2f} {figure['workers']:8.2f}"
            print(
                f"  {engine:7} {figure['ms']:9.2f} {ratio} {cpu} {figure['first']:8.1f} {figure['mib']:9.0f}",
                flush=True,
            )
    if failed:
        sys.exit(1)


def measure(engine: str, clients: int, parameters: int, workers: int, rounds: int) -> dict[str, float]:
    """Milliseconds per message of a later round, seconds of the first with all that is done once, peak MiB."""
    if engine == "flower":
        os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # all else as its users have it
    else:
        quiet_environment()
        keep_memory()
    watch = RoundClock()
    tensors = TENSORS.get(parameters, 10)
    if engine == "flower":
        _flower(clients, parameters, tensors, workers, rounds, watch)
    else:
        with settled():  # as `fedsim` does
            if engine == "bare":
                _bare(clients, parameters, tensors, rounds, watch)
            else:
                _ours(engine, clients, parameters, tensors, workers, rounds, watch)
    peak = peak_memory().resident / 2**20
    own, others = (1000 * seconds / clients for seconds in watch.processor)
    return {"ms": 1000 * watch.round / clients, "server": own, "workers": others, "first": watch.first, "mib": peak}


def _bare(clients: int, parameters: int, tensors: int, rounds: int, watch: RoundClock) -> None:
    """What the work itself costs: an update and its share of a mean, in one process."""
    state = make_state(parameters, tensors)
    watch(0, ArrayRecord())
    for number in range(rounds):
        total = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        for _ in range(clients):
            torch._foreach_add_(list(total.values()), list(train(state).values()))
        state = {name: tensor / clients for name, tensor in total.items()}
        watch(number + 1, ArrayRecord())


def _ours(
    engine: str, clients: int, parameters: int, tensors: int, workers: int, rounds: int, watch: RoundClock
) -> None:
    from flwr.app import Context, RecordDict

    from fedsim.simulation import InlineGrid

    server = make_server_app(parameters, tensors, rounds, watch, OBSERVED[engine], clients)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    if engine == "inline":
        server(InlineGrid(clients, make_client_app), context)
        return
    from fedsim.simulation.on_ray import RayGrid

    with ray_cluster(None, workers, 0):
        grid = RayGrid(clients, make_client_app, workers)
        server(grid, context)
        grid.close()


def _flower(clients: int, parameters: int, tensors: int, workers: int, rounds: int, watch: RoundClock) -> None:
    from flwr.simulation import run_simulation

    run_simulation(
        make_server_app(parameters, tensors, rounds, watch, None, clients),
        FlowerClientApp(),
        clients,
        backend_config={
            "init_args": {"num_cpus": workers, "logging_level": "error", "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


def parse(case: str) -> tuple[int, int]:
    """`100x5M` as (clients, parameters)."""
    clients, size = case.split("x")
    return int(clients), int(float(size[:-1]) * UNITS[size[-1]])


def _in_process(engine: str, case: str, arguments: argparse.Namespace) -> dict[str, float] | None:
    command = [sys.executable, "-m", __package__, "--one", engine, case]
    command += ["--workers", str(arguments.workers), "--rounds", str(arguments.rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - this very command
    if done.returncode != 0:
        print("\n".join(_tail(done.stderr)), file=sys.stderr)
        return None
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _tail(text: str) -> Iterable[str]:
    return text.strip().splitlines()[-5:]
