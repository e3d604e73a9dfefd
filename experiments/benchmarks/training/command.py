"""All ways in turn, each in the process of its engine, and their ratios to the bare loop."""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from safetensors.torch import load_file

from experiments.benchmarks.processor import seconds_of_tree
from experiments.benchmarks.training.work import Work, prepared, same
from fedsim.simulation.ray_cluster import quiet_environment
from fedsim.update import State

ROUNDING = 1e-5
"""Of a mean of weights, which engines add up in other orders."""

ALIKE = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "RAY_worker_niceness": "0"}
"""Compilers are the process's own, so that their seconds are counted; Ray's workers have the priority of all others."""

PFL = "pfl is not installed: pip install pfl==0.6.0, or --pfl-python PATH of an environment that has it beside fedsim"


@dataclass
class Seconds:
    """Of a way's passes: on the clock, and of processors. The first is a warm-up."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def ratios(self, other: "Seconds", of: str) -> tuple[float, float, float]:
        """Low quartile, median and high quartile of this one's passes over the other's beside them."""
        pairs = list(zip(getattr(self, of)[1:], getattr(other, of)[1:], strict=True))
        ratios = [one / beside for one, beside in pairs]
        low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else 3 * ratios
        return low, median, high


class Engine:
    """A process that answers, and the ways that it knows."""

    def __init__(self, name: str, arguments: argparse.Namespace, folder: Path) -> None:
        self._log = folder / f"{name}.log"
        with socket.socket(socket.AF_UNIX) as listening, self._log.open("wb") as log:
            address = str(folder / f"{name}.socket")
            listening.bind(address)
            listening.listen(1)
            listening.settimeout(1.0)
            self.process = subprocess.Popen(  # noqa: S603 - this very command
                [*_python(name, arguments), "--serve", name, address, str(folder), *_words(arguments)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "code"), **ALIKE},
            )
            self._lines = self._connected(listening)
        self.alone = name in ("fedsim", "pfl")
        self.ways: list[str] = self._answer()["ways"]

    def round(self, way: str) -> tuple[float, float]:
        """Seconds of a round on the clock, and of the processors, all processes together."""
        before = 0.0 if self.alone else seconds_of_tree(self.process.pid)
        self._lines.write(f"{way}\n")
        self._lines.flush()
        said = self._answer()
        return said["wall"], said["cpu"] if self.alone else seconds_of_tree(self.process.pid) - before

    def close(self) -> None:
        self._lines.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _connected(self, listening: socket.socket) -> IO[str]:
        while True:
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                if self.process.poll() is not None:
                    raise self._failed() from None
                continue
            connection.settimeout(None)
            with connection:
                return connection.makefile("rw", encoding="utf-8")

    def _answer(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            self.close()
            raise self._failed()
        said: dict[str, Any] = json.loads(line)
        return said

    def _failed(self) -> SystemExit:
        text = self._log.read_text(encoding="utf-8", errors="replace")
        return SystemExit("\n".join(text.strip().splitlines()[-15:]))


def run(arguments: argparse.Namespace) -> None:
    """The table: one row for each way."""
    quiet_environment()
    os.environ["OMP_NUM_THREADS"] = "1"
    setup = prepared(arguments)
    defended = bool(setup.config.defense)
    names = ["fedsim", *(name for name in arguments.engines if name != "fedsim")]
    if defended:
        names = [name for name in names if name in ("fedsim", "ray")]  # no peer has the defense
    if any(name.startswith("pfl") for name in names) and not _has_pfl(arguments.pfl_python):
        print(PFL)
        names = [name for name in names if not name.startswith("pfl")]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        engines: dict[str, Engine] = {}
        for name in names:
            engine = Engine(name, arguments, Path(folder))
            ends.callback(engine.close)
            engines |= dict.fromkeys(engine.ways, engine)
        seconds = in_turn(
            engines, arguments.passes, None if defended else Path(folder), setup.config.client.device != "cuda"
        )
    steps = Work.of(setup).steps
    further = " ".join([f"model={arguments.model}", f"client.batch_size={arguments.batch}", *arguments.settings])
    print(f"{further}: {arguments.clients} clients, {steps} steps in a pass, {arguments.passes} passes")
    print("\n".join(table(seconds, steps)))


def in_turn(engines: dict[str, Engine], passes: int, ends: Path | None, repeatable: bool = True) -> dict[str, Seconds]:
    """Seconds of each way; who goes first changes from one pass to the next.

    Args:
        repeatable: as of `check`.
        ends: where the models after the first pass are, which must be the bare loop's.
    """
    names = list(engines)
    seconds = {name: Seconds() for name in names}
    for number in range(passes + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            wall, cpu = engines[name].round(name)
            seconds[name].wall.append(wall)
            seconds[name].cpu.append(cpu)
        if number == 0 and ends is not None:
            check({name: load_file(ends / f"{name}.safetensors") for name in names}, repeatable)
        print(f"pass {number} of {passes}", file=sys.stderr, flush=True)
    return seconds


def check(models: dict[str, State], repeatable: bool = True) -> None:
    """Refuse to compare what is not the same training; settings besides (`, KEY=VALUE`) train otherwise.

    Args:
        repeatable: the same computation gives the same bits, as on a CPU.
    """
    for name, model in models.items():
        exact = repeatable and name in ("bare again", "fedsim, client")
        if "=" not in name and not same(models["bare"], model, 0.0 if exact else ROUNDING):
            raise SystemExit(f"{name}: another model than the bare loop's")


def table(seconds: dict[str, Seconds], steps: int) -> list[str]:
    """Medians over the passes, with quartiles."""
    columns = ["way", "CPU ms a step", "CPU, ratio to bare", "quartiles", "clock, ratio to bare", "quartiles"]
    lines = [f"| {' | '.join([*columns, 'first pass, CPU s'])} |", f"|{' --- |' * 7}"]
    for name, own in seconds.items():
        cells = [name, f"{1e3 * statistics.median(own.cpu[1:]) / steps:.2f}"]
        for of in ("cpu", "wall"):
            low, median, high = own.ratios(seconds["bare"], of)
            cells += [f"{median:.3f}", f"{low:.3f} to {high:.3f}"]
        lines.append(f"| {' | '.join([*cells, f'{own.cpu[0]:.1f}'])} |")
    return lines


def _python(engine: str, arguments: argparse.Namespace) -> list[str]:
    """The interpreter of an engine, and what comes before its words."""
    if not engine.startswith("pfl"):
        return [sys.executable, "-m", __package__]
    several = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"] if engine == "pfl2" else []
    return [str(arguments.pfl_python), "-m", *several, __package__]


def _words(arguments: argparse.Namespace) -> list[str]:
    words = [f"--model={arguments.model}", f"--clients={arguments.clients}", f"--batch={arguments.batch}"]
    words += [f"--passes={arguments.passes}", "--engines", *arguments.engines]
    if arguments.also:
        words += ["--also", *arguments.also]
    return [*words, "--", *arguments.settings]


def _has_pfl(python: Path) -> bool:
    done = subprocess.run([python, "-c", "import pfl"], capture_output=True, check=False)  # noqa: S603 - the user's own
    return done.returncode == 0
