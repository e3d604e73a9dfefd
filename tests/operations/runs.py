"""Small federated runs to be disturbed, and what one leaves compared with what the undisturbed one leaves."""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.operations.processes import Process, ProcessTree, wait_until
from tests.operations.table import Finding

ROUNDS, CLIENTS, OBSERVED = 6, 6, 2
SECONDS_OF_A_CLIENT = 0.2
PLUGINS = "tests.operations.faults.plugins"
SETTINGS = (
    f"num_clients={CLIENTS}",
    f"num_rounds={ROUNDS}",
    "evaluate_every=1",
    "checkpoint_every=1",
    "observe.every=1",
    f"observe.clients={OBSERVED}",
    "resume_every_seconds=0",
    "tracker=[]",
    "attack=[labels]",
    f"+attack.slow={{_target_:{PLUGINS}.SlowPatchGradient,seconds:0.3}}",
    f"+defense.pace={{_target_:{PLUGINS}.Pace,seconds:{SECONDS_OF_A_CLIENT}}}",
)
SECONDS_FOR_A_RUN = 600.0
"""A run takes half a minute, most of it for starting; a busy machine may take much longer."""

SECONDS_TO_END = 30.0
"""For the processes that a killed driver leaves to notice."""
RAYS_AGENTS = ("DashboardAgent", "RuntimeEnvAgent", "dashboard_agent", "runtime_env_agent")
SECONDS_FOR_AGENTS = 90.0
"""Those try for a minute to tell Ray's server, which is dead as well, that their node is."""

UNREPRODUCED = ("seconds", "attempts")
"""What a seed does not reproduce in a line of attacks.jsonl."""

NOT_STARTED = "Ray's own processes did not start"
"""Ray gives itself 30 s to start, whatever else the machine is doing; fedsim tries three times."""


class RayStartError(RuntimeError):
    """The machine was too busy: no fault was injected, and nothing is known of it."""


@dataclass
class Run:
    """`fedsim` in a process of its own.

    Attributes:
        folder: its run folder.
        log: what it printed, errors included.
    """

    process: subprocess.Popen[bytes]
    folder: Path
    log: Path

    def rows(self, name: str) -> list[dict[str, Any]]:
        return rows(self.folder, name)

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait(self, seconds: float = SECONDS_FOR_A_RUN) -> int:
        return self.process.wait(timeout=seconds)

    def wait_until(self, happened: Callable[[], bool], what: str, seconds: float = SECONDS_FOR_A_RUN) -> None:
        """Raises RuntimeError where the run ends first, with its last words."""

        def look() -> bool:
            if happened():
                return True
            if self.process.poll() is not None:
                self.check_started()
                raise RuntimeError(f"the run ended with {self.process.returncode} before {what}: {self.last_words}")
            return False

        wait_until(look, seconds, what)

    def wait_for_round(self, server_round: int) -> None:
        """Until this round's line is in the metrics."""
        self.wait_until(lambda: len(self.rows("metrics")) > server_round, f"round {server_round}")

    def check_started(self) -> None:
        """Raises RayStartError where that is why the run ended."""
        if NOT_STARTED in self.said:
            raise RayStartError(NOT_STARTED)

    @property
    def last_words(self) -> str:
        return " ".join(self.said.strip().splitlines()[-3:])


class Bench:
    """Makes runs; one at a time.

    Args:
        scratch: everything is made in here.
        workers: client workers of a run.
        settings: more of the small run, as after `fedsim`.
    """

    def __init__(
        self,
        tree: ProcessTree,
        scratch: Path,
        workers: int,
        show: Callable[[str], None],
        settings: Sequence[str] = (),
    ) -> None:
        self.tree, self.scratch, self.workers, self.show, self.settings = tree, scratch, workers, show, settings
        self._reference: Path | None = None

    def folder(self, name: str) -> Path:
        """A new path, for a run or anything else."""
        return self.scratch / f"{name}-{secrets.token_hex(3)}"

    def start(self, *arguments: str, folder: Path | None = None, environment: Mapping[str, str] | None = None) -> Run:
        """`fedsim` with exactly these arguments and a run_dir; `resume=` where the folder is among them."""
        root = folder or self.folder("run")
        log = self.folder("log")
        where = () if any(one.startswith("resume=") for one in arguments) else (f"run_dir={root}",)
        command = (sys.executable, "-m", "experiments.run", *arguments, *where)
        return Run(self.tree.start(*command, log=log, environment=environment), root, log)

    def small(self, *more: str, folder: Path | None = None, environment: Mapping[str, str] | None = None) -> Run:
        """The small run."""
        workers = f"simulation.workers={self.workers}"
        return self.start(*SETTINGS, workers, *self.settings, *more, folder=folder, environment=environment)

    def resume(self, folder: Path, *more: str) -> Run:
        return self.start(f"resume={folder}", *more, folder=folder)

    def reference(self) -> Path:
        """The undisturbed small run's folder, made once, in one process: its bits are those of any number of workers.

        Raises:
            RuntimeError: it failed.
        """
        if self._reference is None:
            self.show("the undisturbed run")
            self._reference = self.finished(self.small("simulation=inline")).folder
        return self._reference

    def finished(self, run: Run) -> Run:
        """Raises RuntimeError where the run does not end well."""
        code = run.wait()
        if code != 0:
            run.check_started()
            raise RuntimeError(f"the run ended with {code}: {run.last_words}")
        return run

    def kill_driver(self, run: Run, agents: bool = False) -> list[Process]:
        """SIGKILL to the driver alone; gives what has not ended by itself some time later, which is ended then.

        Args:
            agents: wait for Ray's own agents too.
        """
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        left = self.tree.left_after(SECONDS_TO_END, RAYS_AGENTS)
        if agents and not left:
            left = self.tree.left_after(SECONDS_FOR_AGENTS)
        self.tree.end_all()
        return left


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    """The complete lines of NAME.jsonl."""
    path = folder / f"{name}.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def results(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Of attacks, by observation and attack, without what a seed does not reproduce."""
    found = {}
    for row in rows(folder, "attacks"):
        found[row["observation"], row["attack"]] = {k: v for k, v in row.items() if k not in UNREPRODUCED}
    return found


def doubled(folder: Path) -> list[tuple[str, str]]:
    """Attacks with more than one result."""
    counts = Counter((row["observation"], row["attack"]) for row in rows(folder, "attacks"))
    return [key for key, count in counts.items() if count > 1]


def differences(folder: Path, reference: Path) -> list[str]:
    """Where a finished run differs from another one; nothing where it is the same to the bit."""
    found = []
    if (folder / "metrics.jsonl").read_bytes() != (reference / "metrics.jsonl").read_bytes():
        found.append("metrics.jsonl has other bytes")
    for name in ("checkpoints", "reconstructions"):
        mine, other = _files(folder / name), _files(reference / name)
        changed = sorted(key for key in mine.keys() | other.keys() if mine.get(key) != other.get(key))
        found += [f"{name}: {len(changed)} files differ, {changed[0]} first"] if changed else []
    mine_rows, other_rows = results(folder), results(reference)
    lost = sorted(other_rows.keys() - mine_rows.keys())
    wrong = sorted(key for key in mine_rows.keys() & other_rows.keys() if mine_rows[key] != other_rows[key])
    more = sorted(mine_rows.keys() - other_rows.keys())
    for what, keys in (("lost", lost), ("others", wrong), ("doubled", doubled(folder)), ("too many", more)):
        found += [f"results of attacks {what}: {len(keys)}, {' '.join(keys[0])} first"] if keys else []
    if not (folder / "summary.json").is_file() or not json.loads((folder / "summary.json").read_text())["finished"]:
        found.append("no summary of a finished run")
    if (folder / "resume").exists():
        found.append("resume points are left over")
    return found


def check_same(finding: Finding, run: Run, reference: Path) -> None:
    """The run ends well, and leaves what the other one left."""
    code = run.wait()
    if code != 0:
        run.check_started()
        finding.check(False, "", f"the run ended with {code}: {run.last_words}")
        return
    found = differences(run.folder, reference)
    count = len(results(reference))
    finding.check(not found, f"same bits; {count} of {count} attack results, each once", "; ".join(found))


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
