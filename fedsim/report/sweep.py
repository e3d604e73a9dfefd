"""Several runs side by side: one row per run and attack."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.report.read import read_run
from fedsim.report.summary import AttackSummary, final_accuracy, summarise_attacks

COLUMNS_SHOWN = 4
"""Settings that differ between the runs and get a column of their own."""

HIDDEN_GROUPS = ("output", "run", "hydra")
NAMED_GROUPS = ("defense", "attack")
"""A row names those that its run has; a setting of one gets a column where runs that have it differ in it."""


@dataclass(frozen=True)
class SweepRow:
    """One attack on one run, or a run without any (`attack` is None).

    Attributes:
        link: address of the run's page relative to the sweep folder; None where there is no page.
        settings: values of the settings that differ between the runs.
    """

    run: str
    link: str | None
    defense: str
    settings: tuple[str, ...]
    accuracy: float | None
    attack: AttackSummary | None


@dataclass(frozen=True)
class Sweep:
    """The comparison.

    Attributes:
        columns: names of the settings that differ.
        unfinished: runs that are left out because they did not finish.
    """

    name: str
    columns: tuple[str, ...]
    rows: tuple[SweepRow, ...]
    runs: int
    unfinished: tuple[str, ...]


def read_sweep(folder: Path) -> Sweep:
    """Compare the finished runs below a folder, at any depth; links that lead out of it are not followed.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no sweep folder at {folder}")
    folders = sorted({file.parent for name in ("config.yaml", "summary.json") for file in folder.rglob(name)})
    inside = [path for path in folders if path != folder and path.resolve().is_relative_to(folder.resolve())]
    runs = [read_run(path) for path in inside if not path.name.startswith(".")]
    finished = [run for run in runs if run.finished]
    flat = [_flatten(run.config) for run in finished]
    columns = _differing(flat)
    rows: list[SweepRow] = []
    for run, values in zip(finished, flat, strict=True):
        page = run.path / "report.html"
        attacks: list[AttackSummary | None] = [*summarise_attacks(run)]
        for attack in attacks or [None]:
            row = SweepRow(
                run=run.path.relative_to(folder).as_posix(),
                link=page.relative_to(folder).as_posix() if page.is_file() else None,
                defense=" + ".join(run.names("defense")) or "none",
                settings=tuple(values.get(column, "") for column in columns),
                accuracy=final_accuracy(run),
                attack=attack,
            )
            rows.append(row)
    rows.sort(key=lambda row: (row.defense != "none", row.defense, row.attack.attack if row.attack else "", row.run))
    return Sweep(
        name=folder.resolve().name,
        columns=columns,
        rows=tuple(rows),
        runs=len(finished),
        unfinished=tuple(run.path.relative_to(folder).as_posix() for run in runs if not run.finished),
    )


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    values: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            values |= _flatten({str(name): item for name, item in value.items()}, f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = str(value)
    return values


def _differing(configs: list[dict[str, str]]) -> tuple[str, ...]:
    keys = dict.fromkeys(key for config in configs for key in config)
    differing = [key for key in keys if len({config.get(key) for config in configs}) > 1]
    shown = [key for key in differing if not key.split(".")[0].startswith(HIDDEN_GROUPS)]
    shown = [key for key in shown if key.split(".")[0] not in NAMED_GROUPS or _differs_within(key, configs)]
    return tuple(shown[:COLUMNS_SHOWN])


def _differs_within(key: str, configs: list[dict[str, str]]) -> bool:
    values = {config[key] for config in configs if key in config}
    return len(values) > 1 and not key.endswith("._target_")
