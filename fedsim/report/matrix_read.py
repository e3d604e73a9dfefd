"""From the folders of a leakage matrix's runs to its cells and to what its trainings reached."""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedsim.report.leakage import summarise_leakage
from fedsim.report.matrix_cells import Cell
from fedsim.report.read import RunFolder, read_run
from fedsim.report.summary import final_accuracy
from fedsim.report.thresholds import EXACT, RECOGNISABLE

BASELINE = "baseline.json"
"""In an audit's folder: what a guess without any gradient reaches for each picture."""


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
    run = read_run(folder) if folder.is_dir() else None
    latest = {(row.get("observation"), row.get("attack")): row for row in _lines(folder / "attacks.jsonl")}
    return [
        replace(
            _cell(name, state, [row for (_, attack), row in latest.items() if attack == name], updates, guess),
            as_seen=0 if run is None else _as_seen(run, name),
        )
        for name in attacks
    ]


def _as_seen(run: RunFolder, attack: str) -> int:
    """Of how many pictures the attack rebuilt what the model saw, and nothing recognisable by PSNR."""
    records = tuple(record for record in run.attacks if record.attack == attack)
    return summarise_leakage(replace(run, attacks=records)).as_seen


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
    status = "failed" if failed else "done" if done else "refused"
    values = [pair for row in done + refused for pair in _best(row).items()]
    rebuilt = [value for _, value in values if value is not None]
    # A guess that is unknown (the picture is none of the audit's) counts as nothing at all.
    leaked = [guess.get(image, 0.0) if value is None else min(value, EXACT) for image, value in values]
    reasons = [str(row.get("reason") or "no reason given") for row in failed or refused]
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
        label_exact=_mean([float(row["label_exact"]) for row in done if row.get("label_exact") is not None]),
        label_share=_mean([float(row["label_share"]) for row in done if row.get("label_share") is not None]),
        seconds=_mean([float(row["seconds"]) for row in done]),
        batch=max((len(_best(row)) for row in rows), default=None),
    )


def _best(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Private PSNR by picture of an update, None for one that is not rebuilt.

    A picture that the model saw more than once, changed by a defense each time, counts once, by its best result.
    """
    best: dict[str, float | None] = {}
    for image in row["images"]:
        name, value = str(image.get("image")), _finite(image.get("private_psnr"))
        known = best.get(name)
        best[name] = value if known is None else known if value is None else max(known, value)
    return best


def _lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSONL file; the one that is being written is passed over."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
