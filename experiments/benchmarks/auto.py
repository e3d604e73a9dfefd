"""`simulation=auto` beside `ray` and `inline`: whole commands in turn after a warm-up, each a process of its own.

python -m experiments.benchmarks.auto                                  all workloads, once
python -m experiments.benchmarks.auto --only audit_tutorial --repeats 3
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ENGINES = ("auto", "ray", "inline")
AUDIT, RUN, MATRIX = "experiments.audit", "experiments.run", "experiments.matrix"
WORKLOADS = {
    "audit_tutorial": (AUDIT, "data=digits", "model=vit_nano", "audit.num_images=2"),
    "training_of_the_demo": (RUN,),
    "100_small_clients": (RUN, "num_clients=100", "num_rounds=20", "strategy=fedavg", "client.batch_size=16"),
    "audit_vit_small": (AUDIT,),
    "searches": (
        AUDIT,
        "data=digits",
        "model=vit_nano",
        "audit.num_images=8",
        "attack=[inverting_gradients]",
        "attack.inverting_gradients.steps=1000",
    ),
    "matrix_row": (MATRIX, "matrix.rows=[none]"),
}
"""The module of the command, and its settings."""


def main() -> None:
    """One line for each workload, as it ends."""
    arguments = _arguments()
    print(
        f"| workload | {' | '.join(ENGINES)} | auto took | auto / the better |\n|---|---|---|---|---|---|", flush=True
    )
    for name in arguments.only:
        run(WORKLOADS[name], "ray")  # a warm-up: reads the files that all engines read
        seconds: dict[str, list[float]] = {engine: [] for engine in ENGINES}
        took = ""
        for repeat in range(arguments.repeats):
            first = repeat % len(ENGINES)
            for engine in ENGINES[first:] + ENGINES[:first]:
                spent, out = run(WORKLOADS[name], engine)
                seconds[engine].append(spent)
                if engine == "auto":
                    took = "Ray" if "Ray" in out.splitlines()[0] else "this process"
        auto, *others = (statistics.median(seconds[engine]) for engine in ENGINES)
        cells = " | ".join(f"{value:.1f} s" for value in (auto, *others))
        print(f"| {name.replace('_', ' ')} | {cells} | {took} | {auto / min(others):.2f} |", flush=True)


def run(workload: tuple[str, ...], engine: str) -> tuple[float, str]:
    """Seconds of the whole process, and what it printed.

    Raises:
        RuntimeError: it failed.
    """
    module, *settings = workload
    with tempfile.TemporaryDirectory(prefix="fs-") as folder:
        line = [sys.executable, "-m", module, *settings, f"simulation={engine}", f"run_dir={folder}/run"]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        start = time.perf_counter()
        ended = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)  # noqa: S603 - ours
        spent = time.perf_counter() - start
    if ended.returncode:
        raise RuntimeError(f"{' '.join(line)}\n{ended.stderr}")
    return spent, ended.stdout


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS), help="workloads")
    parser.add_argument("--repeats", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
