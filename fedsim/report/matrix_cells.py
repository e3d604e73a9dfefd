"""The numbers of a leakage matrix: from the folders of its runs to cells and rows. No wording, no pictures."""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedsim.report.read import read_run
from fedsim.report.summary import RECOGNISABLE, final_accuracy

EXACT = 60.0
"""dB at which a picture counts as exact: what rounding to 256 levels alone leaves is 58.9 dB. Keeps one exact picture
from outweighing all others in a mean."""

BASELINE = "baseline.json"
"""In an audit's folder: what a guess without any gradient reaches for each picture."""


@dataclass(frozen=True)
class Cell:
    """One attack against one defense in one state of the model.

    Attributes:
        status: `done` (on one update at least), `refused` (on all), `failed`, or `pending`.
        reason: the most frequent one of the updates on which the attack refused or failed.
        done, refused, failed: updates by outcome.
        pictures, rebuilt: private pictures behind them, and those for which the attack returned one.
        private_psnr: mean over the rebuilt pictures in dB, against the client's own picture before any defense.
        leakage: the same over *all* pictures: one that is not rebuilt counts as the guess, one above `EXACT` as that.
            None where the attack rebuilt nothing.
        baseline: mean PSNR of the guess in dB.
        recognised: share of all pictures with a private PSNR of at least `RECOGNISABLE`.
        label_exact, label_share: share of updates with every label right, mean share of labels; None without labels.
        seconds: mean over the updates on which the attack ran to its end.
    """

    attack: str
    state: str
    status: str = "pending"
    reason: str = ""
    done: int = 0
    refused: int = 0
    failed: int = 0
    pictures: int = 0
    rebuilt: int = 0
    private_psnr: float | None = None
    leakage: float | None = None
    baseline: float | None = None
    recognised: float | None = None
    label_exact: float | None = None
    label_share: float | None = None
    seconds: float | None = None

    @property
    def gain(self) -> float | None:
        """dB that the attack has over the guess."""
        return None if self.leakage is None or self.baseline is None else self.leakage - self.baseline


@dataclass(frozen=True)
class Stage:
    """What became of one run of a row: `done`, `refused` or `failed` with a reason, or `pending`."""

    status: str = "pending"
    reason: str = ""
    seconds: float | None = None
    link: str | None = None


@dataclass(frozen=True)
class Row:
    """One defense.

    Attributes:
        settings: the row as it was asked for.
        accuracies: final test accuracy of each training that ended.
        train_seconds: mean wall time of all rounds of a training.
        measured: what the defense itself measured in the last round, by name (ε of DP-SGD, a mask ratio).
        client_failures: how often a client raised in all trainings together.
        trainings: by seed; audits: by state.
    """

    name: str
    settings: str = ""
    accuracies: tuple[float, ...] = ()
    train_seconds: float | None = None
    measured: dict[str, float] = field(default_factory=dict)
    client_failures: int = 0
    trainings: dict[str, Stage] = field(default_factory=dict)
    audits: dict[str, Stage] = field(default_factory=dict)
    cells: tuple[Cell, ...] = ()
    pareto: bool = False

    @property
    def accuracy(self) -> float | None:
        return statistics.fmean(self.accuracies) if self.accuracies else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds; None for a single one."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    @property
    def strongest(self) -> Cell | None:
        """The cell that leaked most, over all states."""
        return self.strongest_in(None)

    def strongest_in(self, state: str | None) -> Cell | None:
        cells = [c for c in self.cells if c.leakage is not None and state in (None, c.state)]
        return max(cells, key=lambda cell: (cell.leakage or 0.0, cell.private_psnr or 0.0), default=None)

    @property
    def baseline(self) -> float | None:
        return next((cell.baseline for cell in self.cells if cell.baseline is not None), None)

    @property
    def leakage(self) -> float | None:
        """dB of the strongest attack; the guess where every attack ran or refused and none rebuilt a picture."""
        if self.strongest is not None:
            return self.strongest.leakage
        tried = bool(self.cells) and all(cell.status in ("done", "refused") for cell in self.cells)
        return self.baseline if tried else None


@dataclass(frozen=True)
class Matrix:
    """Attacks × defenses.

    Attributes:
        facts: (name, value) of the setting in which all of it was measured.
        finished: no run is missing.
        seconds: wall time of the calls that made it, together.
    """

    name: str
    facts: tuple[tuple[str, str], ...]
    attacks: tuple[str, ...]
    states: tuple[str, ...]
    rows: tuple[Row, ...]
    finished: bool = False
    seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON, with what follows from the numbers beside them."""
        rows = []
        for row in self.rows:
            cells = [{**asdict(cell), "gain": cell.gain} for cell in row.cells]
            strongest = None if row.strongest is None else row.strongest.attack
            follows = {"accuracy": row.accuracy, "spread": row.spread, "strongest": strongest, "leakage": row.leakage}
            rows.append({**asdict(row), **follows, "baseline": row.baseline, "cells": cells})
        return {**asdict(self), "rows": rows}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Matrix":
        """Raises KeyError or TypeError: the values are no matrix."""
        return cls(
            **{key: values[key] for key in ("name", "finished", "seconds")},
            facts=tuple((name, value) for name, value in values["facts"]),
            attacks=tuple(values["attacks"]),
            states=tuple(values["states"]),
            rows=tuple(_row(row) for row in values["rows"]),
        )


def with_front(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows with those on the Pareto front marked: no other is as accurate and leaks less, or the reverse."""
    points = [(row.accuracy, row.leakage) for row in rows]
    front = pareto_front([(a, leak) for a, leak in points if a is not None and leak is not None])
    return tuple(replace(row, pareto=point in front) for row, point in zip(rows, points, strict=True))


def pareto_front(points: Iterable[tuple[float, float]]) -> set[tuple[float, float]]:
    """The points (accuracy, leakage) that no other dominates: higher accuracy is better, lower leakage is better."""
    front: set[tuple[float, float]] = set()
    least = math.inf
    for accuracy, leakage in sorted(set(points), key=lambda point: (-point[0], point[1])):
        if leakage < least:
            front.add((accuracy, leakage))
            least = leakage
    return front


def read_training(folder: Path, names: Iterable[str]) -> tuple[float | None, float, dict[str, float], int]:
    """(final accuracy, seconds of all rounds, what defenses of these names measured last, clients that raised)."""
    run = read_run(folder)
    prefixes = tuple(f"{name}_" for name in names)
    last: dict[str, Any] = next(reversed(_lines(folder / "metrics.jsonl")), {})
    measured = {
        key: float(value)
        for key, value in last.items()
        if prefixes and key.startswith(prefixes) and isinstance(value, int | float) and math.isfinite(value)
    }
    raised = sum(len(record.failures) for record in run.rounds)
    return final_accuracy(run), sum(run.round_seconds.values()), measured, raised


def read_cells(folder: Path, state: str, attacks: Sequence[str], updates: int) -> list[Cell]:
    """A cell for each attack from an audit's folder, whatever state the audit is in.

    Args:
        updates: how many the audit has when it is finished.
    """
    guess = read_baseline(folder)
    latest = {(row.get("observation"), row.get("attack")): row for row in _lines(folder / "attacks.jsonl")}
    return [
        _cell(name, state, [row for (_, attack), row in latest.items() if attack == name], updates, guess)
        for name in attacks
    ]


def read_baseline(folder: Path) -> dict[str, float]:
    """The guess's PSNR in dB by picture; empty where the audit has not begun."""
    path = folder / BASELINE
    if not path.is_file():
        return {}
    return {str(name): float(value) for name, value in json.loads(path.read_text(encoding="utf-8")).items()}


def _cell(name: str, state: str, rows: list[dict[str, Any]], updates: int, guess: Mapping[str, float]) -> Cell:
    done = [row for row in rows if row["status"] == "done"]
    refused = [row for row in rows if row["status"] == "refused"]
    failed = [row for row in rows if row["status"] not in ("done", "refused")]
    status = "done" if done else "failed" if failed else "refused"
    values = [(str(image.get("image")), _finite(image.get("private_psnr"))) for row in rows for image in row["images"]]
    rebuilt = [value for _, value in values if value is not None]
    # A guess that is unknown (the picture is none of the audit's) counts as nothing at all.
    leaked = [guess.get(image, 0.0) if value is None else min(value, EXACT) for image, value in values]
    exact = [float(row["label_exact"]) for row in done if row.get("label_exact") is not None]
    shares = [float(row["label_share"]) for row in done if row.get("label_share") is not None]
    seconds = [float(row["seconds"]) for row in done]
    reasons = [str(row.get("reason") or "no reason given") for row in failed + refused]
    return Cell(
        attack=name,
        state=state,
        status=status if len(rows) >= updates else "pending",
        reason=statistics.mode(reasons) if reasons else "",
        done=len(done),
        refused=len(refused),
        failed=len(failed),
        pictures=len(values),
        rebuilt=len(rebuilt),
        private_psnr=_mean(rebuilt),
        leakage=_mean(leaked) if rebuilt else None,
        baseline=_mean(list(guess.values())),
        recognised=sum(value >= RECOGNISABLE for value in rebuilt) / len(values) if rebuilt else None,
        label_exact=_mean(exact),
        label_share=_mean(shares),
        seconds=_mean(seconds),
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSONL file; the one that is being written is passed over."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _row(values: Mapping[str, Any]) -> Row:
    plain = ("name", "settings", "train_seconds", "measured", "client_failures", "pareto")
    return Row(
        **{key: values[key] for key in plain},
        accuracies=tuple(values["accuracies"]),
        trainings={name: Stage(**stage) for name, stage in values["trainings"].items()},
        audits={name: Stage(**stage) for name, stage in values["audits"].items()},
        cells=tuple(Cell(**{k: v for k, v in cell.items() if k != "gain"}) for cell in values["cells"]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
