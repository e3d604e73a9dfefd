"""What becomes of a run under each fault: injected into real small runs, compared with what was promised.

python -m tests.operations.faults                                    all rows, about half an hour on 2 cores
python -m tests.operations.faults --only worker-kill nan --out DIR   some of them; DIR/faults.md, DIR/faults.csv

Linux. As root the disk that is full is a tmpfs of its own. Ends with 1 where a row is not as promised.
"""

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.operations.faults import clients as fault_clients
from tests.operations.faults import disk as fault_disk
from tests.operations.faults import resources as fault_resources
from tests.operations.faults import workers as fault_workers
from tests.operations.processes import ProcessTree, hear_signals
from tests.operations.runs import Bench, RayStartError
from tests.operations.table import Finding, Row, to_csv, to_markdown

MAX_STARTS = 3
"""Tries of a row where the machine is too busy for Ray to start at all; the row says so."""


@dataclass(frozen=True)
class Fault:
    """What is injected, what is expected, and how to find out."""

    injected: str
    expected: str
    inject: Callable[[Bench, Finding], None]


FAULTS = {
    "worker-kill": Fault(
        "SIGKILL to a client worker in training",
        "replaced, its client tried again; same bits",
        fault_workers.worker_killed,
    ),
    "attack-kill": Fault(
        "SIGKILL to an attack worker in an attack",
        "replaced, the attack made again; same bits",
        fault_workers.attack_worker_killed,
    ),
    "node-loss": Fault(
        "one of 3 nodes of a Ray cluster removed in mid-round",
        "its clients are tried elsewhere; same bits",
        fault_workers.node_lost,
    ),
    "driver-kill": Fault(
        "SIGKILL to the driver at 10 random moments, each followed by `fedsim resume=RUN`",
        "goes on; same bits, no attack result lost or doubled",
        fault_disk.driver_killed,
    ),
    "client-raises": Fault(
        "a client raises in round 3",
        "named, the round completes without it; same bits as in one process",
        fault_clients.client_raises,
    ),
    "client-hangs": Fault(
        "a client hangs in round 3, past `round_timeout`",
        "named, the round completes without it; no other round waits",
        fault_clients.client_hangs,
    ),
    "nan": Fault(
        "a client shares NaN in round 3",
        "rejected by name, the round completes without it; same bits as in one process",
        fault_clients.client_shares_nan,
    ),
    "disk-full": Fault(
        "a disk with too little room at the start; one that is full from round 2 on",
        "refused before it starts; ends with one line, and with room again `resume` gives the same bits",
        fault_disk.disk_full,
    ),
    "corrupted": Fault(
        "one bit of the newest resume point flipped after a kill; then of every one",
        "said, the one before it used, same bits; with none left one line",
        fault_disk.point_corrupted,
    ),
    "truncated": Fault(
        "the newest resume point cut short after a kill; then every one",
        "said, the one before it used, same bits; with none left one line",
        fault_disk.point_truncated,
    ),
    "object-store": Fault(
        "a Ray object store smaller than one global state",
        "Ray falls back on its disk: same bits as in one process",
        fault_resources.store_too_small,
    ),
    "superlink-port": Fault(
        "the port of a SuperLink is taken (Flower itself, on the loopback)",
        "it ends with a line that names the port",
        fault_resources.superlink_port_taken,
    ),
    "supernode-port": Fault(
        "the port of a SuperNode is taken",
        "it ends with a line that names the port; with free ports the run has the bits of the simulation",
        fault_resources.supernode_port_taken,
    ),
}


def main() -> None:
    arguments = _arguments()
    hear_signals()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="ff-", dir="/tmp"))  # Ray's sockets need a short path
    rows: list[Row] = []
    try:
        with ProcessTree(scratch) as tree:
            show = partial(print, " ", flush=True)
            bench = Bench(tree, scratch, arguments.workers, show, arguments.set)
            for number, name in enumerate(arguments.only, 1):
                print(f"[{number}/{len(arguments.only)}] {name}: {FAULTS[name].injected}", flush=True)
                rows.append(observe(name, FAULTS[name], bench))
                tree.end_all()
                print(f"  {' | '.join(rows[-1].cells[3:])}", flush=True)
                write(rows, out)
    except KeyboardInterrupt:
        print("interrupted; what was found is written", file=sys.stderr)
        sys.exit(130)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"\n{to_markdown(rows)}\n{out / 'faults.md'}")
    sys.exit(0 if all(row.ok for row in rows) else 1)


def observe(name: str, fault: Fault, bench: Bench) -> Row:
    """One row; a fault that could not be injected, or a wait without end, is a row that is not as promised."""
    start = time.monotonic()
    for attempt in range(1, MAX_STARTS + 1):
        finding = Finding()
        try:
            fault.inject(bench, finding)
        except RayStartError as error:
            finding.wrong.append(str(error))
            if attempt < MAX_STARTS:
                bench.show(f"once more: {error}")
                bench.tree.end_all()
                continue
        except Exception as error:  # noqa: BLE001 - whatever it is, it stands in the table
            traceback.print_exc()
            finding.wrong.append(f"{type(error).__name__}: {error}")
        break
    if attempt > 1:
        finding.say(f"(Ray did not start {attempt - 1} times before)")
    return Row(name, fault.injected, fault.expected, finding, time.monotonic() - start)


def write(rows: Sequence[Row], out: Path) -> None:
    (out / "faults.md").write_text(to_markdown(rows), encoding="utf-8")
    (out / "faults.csv").write_text(to_csv(rows), encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.operations.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="NAME", help=" ".join(FAULTS)
    )
    parser.add_argument("--out", type=Path, default=Path("runs/faults"), help="folder of the table")
    parser.add_argument("--workers", type=int, default=2, help="client workers of a run")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="more settings of the small run")
    return parser.parse_args()
