"""A case: what is built, which of its pages is read, and what must hold of it."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.cli.call import console, errors
from experiments.engine.reporting import reported
from fedsim.errors import RunError
from fedsim.report.draw.pictures import save_png
from fedsim.report.render import build_comparison, build_report
from fedsim.storage.run_folder import RunFolder
from tests.verdicts.expectations import Expectation, house_rules
from tests.verdicts.lines import Line
from tests.verdicts.pages import Said, read_page

TEST_IMAGES = 1400
CONFIG = """\
seed: {seed}
num_rounds: 2
client: {{share: gradient, batch_size: 1}}
model: {{name: vit_nano_patch2_8, img_size: 8}}
defense: {defense}
attack: {attack}
"""


@dataclass(frozen=True)
class Case:
    """One attempt at an untrue sentence.

    Attributes:
        lie: what a reader would believe wrongly.
        make: builds it in an empty folder and reads its page.
    """

    name: str
    lie: str
    make: Callable[[Path], Said]
    expected: tuple[Expectation, ...]

    def wrong(self, said: Said) -> list[str]:
        """What does not hold."""
        return [one.words for one in self.expected if not one.holds(said)] + house_rules(said)


@dataclass(frozen=True)
class PlannedRun:
    """A run folder to be written.

    Attributes:
        kind: `audit`, which has no accuracy, or `federated`.
        state: `ended`, `unfinished`, or `old`: an earlier version left it, and its page alone is built anew.
        accuracies: of round 0 and of the last.
        torn: more text behind the last line of `attacks.jsonl`.
    """

    lines: Sequence[Line] = ()
    defense: str = "{}"
    attack: str = ""
    kind: str = "federated"
    state: str = "ended"
    seed: int = 0
    accuracies: Sequence[float] = (0.1, 0.75)
    test_images: int | None = TEST_IMAGES
    torn: str = ""


def of_run(run: PlannedRun) -> Callable[[Path], Said]:
    """Build a run, and read its page and what the command says at its end."""

    def make(folder: Path) -> Said:
        terminal = write(run, folder)
        return read_run_page(folder, terminal)

    return make


def of_runs(**runs: PlannedRun) -> Callable[[Path], Said]:
    """The page that compares several."""

    def make(folder: Path) -> Said:
        for name, run in runs.items():
            write(run, folder / name)
        page = build_comparison([folder / name for name in runs], folder / "comparison.html")
        return read_page("comparison", page.read_text(encoding="utf-8"), "", {})

    return make


def read_run_page(folder: Path, terminal: str) -> Said:
    html = (folder / "report.html").read_text(encoding="utf-8")
    summary = folder / "summary.json"
    stated = json.loads(summary.read_text(encoding="utf-8")) if summary.is_file() else {}
    return read_page("run", html, shown(terminal, folder), stated)


def shown(terminal: str, folder: Path) -> str:
    """Without the lines that say where the files are."""
    lines = terminal.replace(str(folder), "RUN").splitlines()
    return "\n".join(line for line in lines if not line.startswith(("report ", "RUN", "updates ")))


def write(run: PlannedRun, folder: Path) -> str:
    """Write what a run leaves and end it as the command does; what the terminal shows is returned."""
    root = RunFolder(folder)
    names = dict.fromkeys(line["attack"] for line in run.lines)
    attack = run.attack or json.dumps({name: {} for name in names})
    root.write_text("config.yaml", CONFIG.format(seed=run.seed, defense=run.defense, attack=attack))
    root.write_text("attacks.jsonl", "".join(f"{json.dumps(line)}\n" for line in run.lines) + run.torn)
    root.write_text("metrics.jsonl", "" if run.kind == "audit" else _metrics(run.accuracies))
    save_png(torch.linspace(0, 1, 192).reshape(3, 8, 8), root.reconstructions / "rebuilt.png")
    if run.state == "old":
        root.write_json("summary.json", {"kind": run.kind, "finished": True, "seconds": 9.0})
        build_report(folder)
        return ""
    return _end(root, run)


def _end(root: RunFolder, run: PlannedRun) -> str:
    tested = None if run.kind == "audit" else run.test_images
    with console.capture() as printed, errors.capture() as failed:
        try:
            with reported(root, run.kind, time.perf_counter(), tested):
                if run.state == "unfinished":
                    raise RunError("stopped")
        except RunError:
            if run.state != "unfinished":
                raise
    return printed.get() + failed.get()


def _metrics(accuracies: Iterable[float]) -> str:
    rows: list[dict[str, Any]] = [
        {"round": 2 * number, "accuracy": value, "clients": 4} for number, value in enumerate(accuracies)
    ]
    return "".join(f"{json.dumps(row)}\n" for row in rows)
