"""Rounds of a real federation: on 1 and 2 client workers, and with attacks beside it or not.

python -m tests.operations.rounds                            both, some minutes on 2 cores
python -m tests.operations.rounds --only scaling --pairs 5

Linux. `scaling`: clients per second of whole runs in turn, on one worker and on two. `beside`: one run on one client
worker, whose attack worker searches all the time; it is stopped (SIGSTOP) in half of the rounds. Ratios are medians, of
pairs that follow one another. The machine must have a core for each worker that is at work.
"""

import argparse
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.operations.processes import ProcessTree, hear_signals
from tests.operations.runs import Bench, Run

CLIENTS = 16
TRAINING = (
    f"num_clients={CLIENTS}",
    "strategy=fedavg",
    "client.batch_size=16",
    "client.local_epochs=8",
    "evaluate_every=1000",
    "resume_every_seconds=null",
    "tracker=[]",
)
"""A client takes a few tenths of a second."""

SEARCH = ("attack=[inverting_gradients]", "attack.inverting_gradients.steps=10000000", "observe.clients=1")
ATTACKER = "AttackWorker"
"""In the title of the process that attacks."""

WARM_UP = 2
"""Rounds that are not counted."""


def main() -> None:
    arguments = _arguments()
    hear_signals()
    with tempfile.TemporaryDirectory(prefix="fs-", dir="/tmp") as scratch, ProcessTree(Path(scratch)) as tree:
        bench = Bench(tree, Path(scratch), 1, print)
        if "scaling" in arguments.only:
            show_scaling(bench, arguments.pairs, arguments.rounds)
        if "beside" in arguments.only:
            show_beside(bench, arguments.pairs * arguments.rounds)


def show_scaling(bench: Bench, pairs: int, rounds: int) -> None:
    speeds: dict[int, list[float]] = {1: [], 2: []}
    for pair in range(pairs):
        for workers in (1, 2) if pair % 2 == 0 else (2, 1):
            more = ("attack=[]", "observe.every=0", f"simulation.workers={workers}", f"num_rounds={WARM_UP + rounds}")
            run = bench.finished(bench.start(*TRAINING, *more))
            counted = run.rows("timings")[1 + WARM_UP :]
            speeds[workers].append(statistics.median(row["clients_per_second"] for row in counted))
    ratios = [two / one for one, two in zip(speeds[1], speeds[2], strict=True)]
    one, two = (statistics.median(speeds[workers]) for workers in (1, 2))
    print(
        f"clients per second: {one:.2f} on 1 worker, {two:.2f} on 2: {statistics.median(ratios):.2f}x {_each(ratios)}"
    )


def show_beside(bench: Bench, pairs: int) -> None:
    more = (*SEARCH, "simulation.workers=1", "simulation.attack_workers=1", f"num_rounds={WARM_UP + 2 * pairs + 2}")
    # Round 1 is observed, and its attack never ends.
    run = bench.start(*TRAINING, *more, "observe.every=100000")
    attacker = _attacker(bench, run)
    seconds: dict[int, list[float]] = {signal.SIGCONT: [], signal.SIGSTOP: []}
    _timing(run, WARM_UP)
    for number in range(2 * pairs):
        # In turn, and so is which comes first.
        order = signal.SIGSTOP if number % 4 in (1, 2) else signal.SIGCONT
        os.kill(attacker, order)
        seconds[order].append(_timing(run, WARM_UP + number + 1))
    busy, still = seconds[signal.SIGCONT], seconds[signal.SIGSTOP]
    ratios = [one / other for one, other in zip(busy, still, strict=True)]
    told = f"{statistics.median(still):.2f} s, {statistics.median(busy):.2f} s beside attacks"
    print(f"a round: {told}: {statistics.median(ratios) - 1:+.1%} {_each(ratios)}")


def _timing(run: Run, server_round: int) -> float:
    """Seconds of this round, once it has ended."""
    run.wait_until(lambda: len(run.rows("timings")) > server_round, f"round {server_round}")
    return float(run.rows("timings")[server_round]["seconds"])


def _attacker(bench: Bench, run: Run) -> int:
    """Once it is at work."""
    found: list[int] = []

    def look() -> bool:
        found[:] = [one.pid for one in bench.tree.members(f"ray::{ATTACKER}.")]
        return bool(found)

    run.wait_until(look, "an attack began")
    time.sleep(1.0)
    return found[0]


def _each(ratios: Sequence[float]) -> str:
    return f"(median of {len(ratios)} pairs, {min(ratios):.2f}-{max(ratios):.2f})"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["scaling", "beside"], choices=["scaling", "beside"])
    parser.add_argument("--pairs", type=int, default=3, help="of runs")
    parser.add_argument("--rounds", type=int, default=6, help="counted, of each run")
    return parser.parse_args()


if __name__ == "__main__":
    main()
