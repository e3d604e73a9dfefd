"""Several runs side by side: leakage by attack, accuracy, cost, and the settings in which they differ."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedsim.metrics.chance import accuracy_error, only_guessed
from fedsim.report.compare.same_pictures import SamePicture, same_pictures
from fedsim.report.compare.settings import HIDDEN_GROUPS, apart_from_defense, defense_name, flatten
from fedsim.report.compare.verdict import DefenseVerdict, judge_defenses
from fedsim.report.level_wording import nothing_learned
from fedsim.report.run.baseline import baselines
from fedsim.report.run.read import RecordedRun, read_run
from fedsim.report.run.summary import AttackSummary, RunTimes, final_accuracy, run_times, summarise_attacks

COLUMNS_SHOWN = 4
"""Settings that differ between the runs and get a column of their own in the first table."""

FEW_OTHERS = 2
"""Settings of neither defenses nor attacks that a sweep changes at once."""

NAMED_GROUPS = ("defense", "attack")
"""A row names those that its run has; a setting of one gets a column where runs that have it differ in it."""


@dataclass(frozen=True)
class ComparedRun:
    """One run.

    Attributes:
        name: its folder as seen from the others.
        link: address of its page relative to the comparison's; None where there is no page.
        baselines: those of its attacks that never read what was shared.
        accuracy_error: its standard error; None where the number of test images is not known.
        attack_seconds: summed over all attacks and workers.
        memory: GiB of the server at most; None where it was not measured.
    """

    name: str
    link: str | None
    defense: str
    settings: Mapping[str, str]
    accuracy: float | None
    accuracy_error: float | None
    attacks: tuple[AttackSummary, ...]
    baselines: frozenset[str]
    times: RunTimes
    attack_seconds: float
    memory: float | None

    def attack(self, name: str) -> AttackSummary | None:
        return next((row for row in self.attacks if row.attack == name), None)


@dataclass(frozen=True)
class ComparisonRow:
    """One attack on one run, or a run without any (`attack` is None)."""

    entry: ComparedRun
    attack: AttackSummary | None

    @property
    def baseline(self) -> bool:
        return self.attack is not None and self.attack.attack in self.entry.baselines


@dataclass(frozen=True)
class Comparison:
    """What the page shows.

    Attributes:
        differing: keys of all settings that differ.
        columns: those of them that get a column in the first table.
        unfinished: runs that are left out because they did not finish.
        unlike: the finished runs differ in more than defenses, attacks and seeds.
        nothing_learned: said where there are several accuracies, and none is more than a guess's.
    """

    name: str
    entries: tuple[ComparedRun, ...]
    rows: tuple[ComparisonRow, ...]
    differing: tuple[str, ...]
    columns: tuple[str, ...]
    verdicts: tuple[DefenseVerdict, ...]
    pictures: tuple[SamePicture, ...]
    unfinished: tuple[str, ...]
    unlike: bool = False
    nothing_learned: str = ""

    def settings_of(self, run: str) -> str:
        """The settings in which runs of this one's defenses differ, by the ends of their keys.

        Those of defenses and attacks alone where others are many: then the runs are of unlike kinds, not of a sweep.
        """
        own = self._by_name[run]
        apart = [key for key in self._apart[own.defense] if key in own.settings]
        named = [key for key in apart if key.split(".")[0] in NAMED_GROUPS]
        shown = apart if len(apart) - len(named) <= FEW_OTHERS else named
        return ", ".join(f"{'.'.join(key.split('.')[-2:])}={own.settings[key]}" for key in shown[:COLUMNS_SHOWN])

    @cached_property
    def _by_name(self) -> dict[str, ComparedRun]:
        return {entry.name: entry for entry in self.entries}

    @cached_property
    def _apart(self) -> dict[str, list[str]]:
        """By defense the keys of which its runs have several values."""
        keys = [key for key in self.differing if not key.endswith("._target_")]
        alike: dict[str, list[Mapping[str, str]]] = {}
        for entry in self.entries:
            alike.setdefault(entry.defense, []).append(entry.settings)
        return {
            defense: [key for key in keys if len({one[key] for one in settings if key in one}) > 1]
            for defense, settings in alike.items()
        }

    @property
    def attack_names(self) -> list[str]:
        """Names of the attacks of all runs, in the order in which they first occur."""
        return list(dict.fromkeys(row.attack for entry in self.entries for row in entry.attacks))


def find_runs(folder: Path) -> list[Path]:
    """The run folders below a folder, at any depth, run 10 behind run 9; links that lead out of it are not followed.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no sweep folder at {folder}")
    folders = {file.parent for name in ("config.yaml", "summary.json") for file in folder.rglob(name)} - {folder}
    inside = [path for path in folders if path.resolve().is_relative_to(folder.resolve())]
    return sorted((path for path in inside if not path.name.startswith(".")), key=_in_order)


def _in_order(path: Path) -> list[tuple[bool, int, str]]:
    """Numbers in names count as numbers."""
    parts = re.findall(r"\d+|\D+", path.as_posix())
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


def compare_runs(folders: Sequence[Path], home: Path, name: str) -> Comparison:
    """Compare the finished ones of these runs, in the order given; of each the strongest attack first.

    Args:
        home: folder of the page, from which its links start.

    Raises:
        FileNotFoundError: one of the folders does not exist.
    """
    runs = dict(zip(_names(folders, home), map(read_run, folders), strict=True))
    finished = {label: run for label, run in runs.items() if run.finished}
    flat = {label: flatten(run.config) for label, run in finished.items()}
    entries = [_entry(label, run, flat[label], home) for label, run in finished.items()]
    attacks: list[tuple[ComparedRun, AttackSummary | None]] = []
    for entry in entries:
        attacks += [(entry, attack) for attack in entry.attacks] or [(entry, None)]
    rows = [ComparisonRow(entry, attack) for entry, attack in attacks]
    differing = _differing(list(flat.values()))
    return Comparison(
        name=name,
        entries=tuple(entries),
        rows=tuple(rows),
        differing=differing,
        columns=tuple(key for key in differing if _in_first_table(key, list(flat.values())))[:COLUMNS_SHOWN],
        verdicts=tuple(judge_defenses(list(finished.values()))),
        pictures=tuple(same_pictures({entry.name: finished[entry.name] for entry in entries})),
        unfinished=tuple(label for label, run in runs.items() if not run.finished),
        unlike=len({apart_from_defense(run) for run in finished.values()}) > 1,
        nothing_learned=_nothing_learned(list(finished.values())),
    )


def _nothing_learned(runs: Sequence[RecordedRun]) -> str:
    known = [(accuracy, run) for run in runs if (accuracy := final_accuracy(run)) is not None]
    if len(known) < 2 or not all(only_guessed([one], run.test_pictures, run.commonest_class) for one, run in known):
        return ""
    guess = max(run.commonest_class or 0.0 for _, run in known)
    return f"{nothing_learned('Neither run' if len(known) == 2 else 'No run', guess)}."


def _names(folders: Sequence[Path], home: Path) -> list[str]:
    """Relative to the page where they lie below it, else to the folder that they share."""
    paths = [folder.resolve() for folder in folders]
    shared = home.resolve()
    if not all(path.is_relative_to(shared) and path != shared for path in paths):
        shared = Path(os.path.commonpath([path.parent for path in paths])) if paths else shared
    names = [path.relative_to(shared).as_posix() for path in paths]
    return [name if names.index(name) == place else f"{name} ({place + 1})" for place, name in enumerate(names)]


def _entry(name: str, run: RecordedRun, settings: Mapping[str, str], home: Path) -> ComparedRun:
    page = run.path / "report.html"
    attacks, accuracy = tuple(summarise_attacks(run)), final_accuracy(run)
    return ComparedRun(
        name=name,
        link=Path(os.path.relpath(page.resolve(), home.resolve())).as_posix() if page.is_file() else None,
        defense=defense_name(run),
        settings=settings,
        accuracy=accuracy,
        accuracy_error=None if accuracy is None else accuracy_error([accuracy], run.test_pictures),
        attacks=attacks,
        baselines=baselines(run),
        times=run_times(run),
        attack_seconds=sum((row.total_seconds for row in attacks), 0.0),
        memory=max((record.values.get("memory_gib", 0.0) for record in run.timings), default=0.0) or None,
    )


def _differing(configs: list[dict[str, str]]) -> tuple[str, ...]:
    keys = dict.fromkeys(key for config in configs for key in config)
    differing = [key for key in keys if len({config.get(key) for config in configs}) > 1]
    return tuple(key for key in differing if not key.split(".")[0].startswith(HIDDEN_GROUPS))


def _in_first_table(key: str, configs: list[dict[str, Any]]) -> bool:
    if key.split(".")[0] not in NAMED_GROUPS:
        return True
    values = {config[key] for config in configs if key in config}
    return len(values) > 1 and not key.endswith("._target_")
