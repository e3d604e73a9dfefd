"""A long run on the default model: whether memory, files and processes stay flat, and what is left of it.

python -m tests.operations.soak                                          500 rounds of 50 clients
python -m tests.operations.soak --rounds 20 --clients 10 --out DIR       DIR/soak.json, DIR/soak.png

Linux. A second, short run is interrupted as by Ctrl-C. Ends with 1 where something is left over, a role was never seen,
or it is not shown with 95 % confidence that in the second half the memory of the driver and of the workers grows by at
most --allowed bytes a round, and open files, shared memory and processes by at most one in 20 rounds.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.operations.processes import ProcessTree, hear_signals
from tests.operations.runs import Bench, Run
from tests.operations.soak.sampling import Sample, still_there, take_sample
from tests.operations.soak.slope import Slope, fit_slope, second_half

SECONDS_TO_END = 20.0
"""For processes to notice that their run is over."""

SECONDS_TO_STOP = 120.0
"""After Ctrl-C."""

SECONDS_BETWEEN_LOOKS = 0.05
SECONDS_BETWEEN_LINES = 10.0
KEPT = ("ray", "torchinductor_")
"""Temporary folders that are no run's own."""

INTERRUPTED_AFTER = 3
"""Rounds of the second run."""

MEASURES: dict[str, Callable[[Sample], float]] = {
    "driver's own memory, bytes": lambda one: one.roles["driver"].own,
    "client workers' own memory, bytes": lambda one: one.roles["clients"].own,
    "attack workers' own memory, bytes": lambda one: one.roles["attacks"].own,
    "Ray's own memory, bytes": lambda one: one.roles["ray"].own,
    "RSS of all, bytes": lambda one: sum(held.rss for held in one.roles.values()),
    "open files": lambda one: sum(held.files for held in one.roles.values()),
    "shared memory, entries": lambda one: len(one.shared),
    "processes": lambda one: sum(held.processes for held in one.roles.values()),
}
JUDGED = {
    "driver's own memory, bytes": "driver",
    "client workers' own memory, bytes": "clients",
    "attack workers' own memory, bytes": "attacks",
}
"""Ray's own memory and RSS are told alone: they hold its logs' buffers and its object store."""

COUNTED = ("open files", "shared memory, entries", "processes")
ALLOWED_COUNT = 0.05
"""A round."""


def main() -> None:
    arguments = _arguments()
    hear_signals()
    arguments.out.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="fs-", dir="/tmp"))  # Ray's sockets need a short path
    size = [f"num_clients={arguments.clients}", f"simulation.workers={arguments.workers}", *arguments.override]
    try:
        with ProcessTree(scratch) as tree:
            bench = Bench(tree, scratch, arguments.workers, print)
            run = bench.start(*size, f"num_rounds={arguments.rounds}")
            samples = watch(bench, run, arguments.rounds)
            code = run.wait()
            ended = left_over(bench, run, samples)
            print("a second run, interrupted", flush=True)
            interrupted = interrupt(bench, size)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    slopes = {name: slope_of(samples, measure) for name, measure in MEASURES.items()}
    report = {
        "rounds": arguments.rounds,
        "clients": arguments.clients,
        "exit": code,
        "slopes": {name: slope and asdict(slope) for name, slope in slopes.items()},
        "ended": ended,
        "interrupted": interrupted,
        "samples": [{**asdict(one), "shared": sorted(one.shared)} for one in samples],
    }
    (arguments.out / "soak.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    draw(samples, slopes, arguments.out / "soak.png")
    sys.exit(0 if tell(report, slopes, arguments.allowed) else 1)


def watch(bench: Bench, run: Run, rounds: int) -> list[Sample]:
    """A sample after each round, until the run ends."""
    samples: list[Sample] = []
    start = said = time.monotonic()
    while run.process.poll() is None:
        server_round = _last_round(run.folder)
        if server_round > (samples[-1].server_round if samples else -1):
            samples.append(take_sample(server_round, time.monotonic() - start, run.process.pid, bench.tree.members()))
        if time.monotonic() - said > SECONDS_BETWEEN_LINES and samples:
            said = time.monotonic()
            own = sum(held.own for held in samples[-1].roles.values()) / 2**20
            print(f"  round {samples[-1].server_round}/{rounds}, {said - start:.0f} s, {own:.0f} MiB", flush=True)
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return samples


def _last_round(folder: Path) -> int:
    """That has a line in the metrics, which begin with round 0; -1: none has."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") - 1 if path.exists() else -1


def left_over(bench: Bench, run: Run, samples: Sequence[Sample]) -> dict[str, list[str]]:
    """What a run should have taken with it: processes, names in shared memory, temporary and partial files.

    Ray leaves the logs of its sessions on purpose, and a socket among them, which is told and not judged; torch has one
    folder for each user, whatever runs.
    """
    processes = [one.title for one in bench.tree.left_after(SECONDS_TO_END)]
    mine = {run.log, run.folder}
    files = [path for path in bench.scratch.iterdir() if path not in mine and not path.name.startswith(KEPT)]
    sockets = [path for path in (bench.scratch / "ray").rglob("*") if path.is_socket()]
    partial = [path for path in run.folder.rglob("*") if path.suffix == ".partial" or path.name == "partial"]
    return {
        "processes": processes,
        "shared memory": still_there(path for one in samples for path in one.shared),
        "files": sorted(str(path) for path in (*files, *partial)),
        "sockets": sorted(str(path) for path in sockets),
    }


def interrupt(bench: Bench, size: Sequence[str]) -> dict[str, Any]:
    """Ctrl-C reaches the driver and whatever is in its process group, as in a terminal."""
    bench.tree.end_all()
    for path in bench.scratch.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    run = bench.start(*size, "num_rounds=10000")
    run.wait_for_round(INTERRUPTED_AFTER)
    samples = [take_sample(INTERRUPTED_AFTER, 0.0, run.process.pid, bench.tree.members())]
    os.killpg(run.process.pid, signal.SIGINT)
    start = time.monotonic()
    with suppress(subprocess.TimeoutExpired):
        run.wait(SECONDS_TO_STOP)
    return {
        "exit": run.process.returncode,  # null: it goes on
        "seconds": time.monotonic() - start,
        "said": run.last_words,
        **left_over(bench, run, samples),
    }


def slope_of(samples: Sequence[Sample], measure: Callable[[Sample], float]) -> Slope | None:
    """Of the second half of the rounds; None where there are too few."""
    half = list(second_half(samples))
    if len(half) < 4:
        return None
    return fit_slope([one.server_round for one in half], [measure(one) for one in half])


def tell(report: dict[str, Any], slopes: dict[str, Slope | None], allowed: float) -> bool:
    """Print what came out; whether it is as it should be."""
    print(f"\n{'second half':36}{'per round':>14}{'95 % from':>14}{'to':>14}")
    for name, slope in slopes.items():
        if slope is not None:
            print(f"{name:36}{slope.value:>14,.2f}{slope.low:>14,.2f}{slope.high:>14,.2f}")
    limits = {**dict.fromkeys(JUDGED, allowed), **dict.fromkeys(COUNTED, ALLOWED_COUNT)}
    grown = [name for name, limit in limits.items() if (slope := slopes[name]) is not None and slope.low > limit]
    unknown = [
        name for name, limit in limits.items() if (slope := slopes[name]) is None or slope.low <= limit < slope.high
    ]
    unseen = [role for role in JUDGED.values() if not any(one["roles"][role]["processes"] for one in report["samples"])]
    print(f"grows by more than {allowed:,.0f} bytes or {ALLOWED_COUNT} a round: {', '.join(grown) or 'nothing'}")
    print(f"not shown to stay below it: {', '.join(unknown) or 'nothing'}")
    print(f"never seen: {', '.join(unseen) or 'no role'}")
    left = []
    for when in ("ended", "interrupted"):
        found = {what: report[when][what] for what in ("processes", "shared memory", "files", "sockets")}
        print(f"left over once {when}: {({k: v for k, v in found.items() if v}) or 'nothing'}")
        left += [one for what in ("processes", "shared memory", "files") for one in found[what]]
    stopped = report["interrupted"]
    print(f"Ctrl-C: exit {stopped['exit']} after {stopped['seconds']:.1f} s: {stopped['said']}")
    return report["exit"] == 0 and stopped["exit"] == 130 and not (grown or unknown or unseen or left)


def draw(samples: Sequence[Sample], slopes: dict[str, Slope | None], path: Path) -> None:
    """One panel a measure over the rounds; the fitted line in the second half."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(4, 2, figsize=(11, 12), sharex=True, layout="constrained")
    rounds = [one.server_round for one in samples]
    for axis, (name, measure) in zip(axes.flat, MEASURES.items(), strict=True):
        scale = 2**20 if name.endswith("bytes") else 1
        values = [measure(one) / scale for one in samples]
        axis.plot(rounds, values, ".", markersize=2)
        slope = slopes[name]
        if slope is not None:
            x, y = second_half(rounds), second_half(values)
            middle, height = sum(x) / len(x), sum(y) / len(y)
            axis.plot(x, [height + slope.value / scale * (one - middle) for one in x])
            axis.set_title(f"{slope.value:,.1f} [{slope.low:,.1f}, {slope.high:,.1f}] a round", fontsize=9)
        axis.set_ylabel(name.replace("bytes", "MiB"), fontsize=8)
        axis.set_ylim(0, 1.15 * max([*values, 1.0]))
    for axis in axes[-1]:
        axis.set_xlabel("round")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.operations.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2, help="client workers")
    parser.add_argument("--allowed", type=float, default=20_000.0, help="bytes a round by which memory may grow")
    parser.add_argument("--out", type=Path, default=Path("runs/soak"), help="folder of soak.json and soak.png")
    parser.add_argument("override", nargs="*", help="more settings of the run, as after `fedsim`")
    return parser.parse_args()
