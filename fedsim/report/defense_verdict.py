"""What each defense is worth, in a sentence: against the undefended run, and against a guess without the gradient."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedsim.report.baseline import GUESS_MARGIN, Baseline, against_guess, best_baseline, reading, split
from fedsim.report.read import RunFolder
from fedsim.report.settings import apart_from_defense, defense_name, defense_settings
from fedsim.report.summary import (
    RECOGNISABLE,
    AttackSummary,
    Leakage,
    final_accuracy,
    mean,
    summarise_attacks,
    summarise_leakage,
)
from fedsim.report.wording import count, decibels, listed, percent

Settings = frozenset[tuple[str, str]]
Level = Literal["safe", "partial", "leaked", "unknown"]

TAGS: dict[Level, str] = {
    "safe": "Nothing recognisable under these attacks",
    "partial": "Leaks less",
    "leaked": "Does not help",
    "unknown": "Not comparable",
}


@dataclass(frozen=True)
class DefenseVerdict:
    """One defense with one set of settings.

    Attributes:
        name: its names, and the settings that tell it from others of the same names.
        level: `safe` where no picture is recognisable, `partial` where fewer are than undefended or the strongest
            attack is held back by more than `GUESS_MARGIN`, `leaked` where neither, `unknown` where it cannot be said.
        runs: how many runs, with different seeds, it rests on.
    """

    name: str
    level: Level
    tag: str
    sentence: str
    details: tuple[str, ...]
    runs: int


@dataclass(frozen=True)
class _Group:
    """Runs alike up to the seed, their pictures pooled."""

    runs: tuple[RunFolder, ...]
    attacks: tuple[AttackSummary, ...]
    leakage: Leakage
    baseline: Baseline | None
    accuracy: float | None

    @property
    def strongest(self) -> AttackSummary | None:
        """Of those that were scored."""
        return next((row for row in self.attacks if row.mean_leaked is not None), None)


def judge_defenses(runs: Sequence[RunFolder]) -> list[DefenseVerdict]:
    """A verdict for each defense among the runs; the undefended ones are what it is held against.

    Two runs compare where they differ in defenses, attacks, seeds and engine alone.
    """
    groups: dict[tuple[Settings, Settings], list[RunFolder]] = {}
    for run in runs:
        groups.setdefault((apart_from_defense(run), defense_settings(run)), []).append(run)
    pooled = {key: _pool(found) for key, found in groups.items()}
    told = []
    for (others, defense), group in pooled.items():
        if defense:
            name = _name(group, defense, [key[1] for key in pooled])
            told.append(_judge(name, group, pooled.get((others, frozenset()))))
    return sorted(told, key=lambda verdict: verdict.name)


def _pool(runs: list[RunFolder]) -> _Group:
    records = [
        replace(record, observation=f"{place}/{record.observation}")
        for place, run in enumerate(runs)
        for record in run.attacks
    ]
    pooled = replace(runs[0], attacks=tuple(records))
    rows = summarise_attacks(pooled)
    accuracies = [value for run in runs if (value := final_accuracy(run)) is not None]
    return _Group(
        runs=tuple(runs),
        attacks=tuple(split(pooled, rows)[0]),
        leakage=summarise_leakage(reading(pooled)),
        baseline=best_baseline(pooled, rows),
        accuracy=mean(accuracies),
    )


def _name(group: _Group, defense: Settings, others: list[Settings]) -> str:
    """The names of the defenses, and what tells these settings from others of the same names."""
    name = defense_name(group.runs[0])
    alike = [one for one in others if _names(one) == _names(defense) and one != defense]
    own = sorted(
        f"{key.removeprefix(f'{name}.')}={value}"
        for key, value in defense
        if any((key, value) not in one for one in alike)
    )
    return f"{name} ({', '.join(own)})" if own else name


def _names(defense: Settings) -> set[str]:
    return {value for key, value in defense if not key}


def _judge(name: str, group: _Group, plain: _Group | None) -> DefenseVerdict:
    level = _level(group, plain)
    sentence = f"{_leak(group)}{_against(group, plain)}."
    details = [*_guess(group), *_utility(group, plain), *_refused(group), *_missing(group, plain)]
    return DefenseVerdict(name, level, TAGS[level], sentence, tuple(details), len(group.runs))


def _level(group: _Group, plain: _Group | None) -> Level:
    if not group.attacks or not _measured(group):
        return "unknown"
    if not group.leakage.recognisable:
        return "safe"
    if plain is None or not _measured(plain) or plain.strongest is None or group.strongest is None:
        return "unknown"
    if _share(group) < _share(plain):
        return "partial"
    gained = (plain.strongest.mean_leaked or 0.0) - (group.strongest.mean_leaked or 0.0)
    return "partial" if gained > GUESS_MARGIN else "leaked"


def _measured(group: _Group) -> bool:
    """Whether something was scored, or every attack refused every update."""
    return group.leakage.scored > 0 or (
        bool(group.attacks) and all(row.refused == row.observations for row in group.attacks)
    )


def _share(group: _Group) -> float:
    return group.leakage.recognisable / group.leakage.pictures if group.leakage.pictures else 0.0


def _leak(group: _Group) -> str:
    if not group.attacks:
        return "No attack has run on it"
    if not _measured(group):
        return "No picture was compared with its original"
    of = count(group.leakage.pictures, "observed picture")
    text = f"{group.leakage.recognisable:,} of {of} recognisable (PSNR ≥ {RECOGNISABLE:.0f} dB)"
    if group.strongest is None:
        return f"{text}: every attack refused"
    return f"{text}: {group.strongest.attack} is strongest, at {decibels(group.strongest.mean_leaked)} on average"


def _against(group: _Group, plain: _Group | None) -> str:
    if plain is None or not _measured(plain):
        return ""
    text = f"; without the defense {plain.leakage.recognisable:,} of {plain.leakage.pictures:,}"
    strongest = plain.strongest
    return text if strongest is None else f"{text}, {strongest.attack} at {decibels(strongest.mean_leaked)}"


def _guess(group: _Group) -> list[str]:
    if group.strongest is None or group.strongest.mean_leaked is None:
        return []
    if group.baseline is None:
        return [
            "Not held against a guess: these runs recorded none, and no attack among them ran without the gradient."
        ]
    return [against_guess(group.strongest.attack, group.strongest.mean_leaked, group.baseline)]


def _utility(group: _Group, plain: _Group | None) -> list[str]:
    if group.accuracy is None:
        return []
    text = f"Accuracy {percent(group.accuracy)}"
    if plain is None or plain.accuracy is None:
        return [f"{text}."]
    points = 100 * (group.accuracy - plain.accuracy)
    runs = [count(len(group.runs), "run"), count(len(plain.runs), "run")]
    return [f"{text} against {percent(plain.accuracy)} without it: {points:+.1f} points ({' against '.join(runs)})."]


def _refused(group: _Group) -> list[str]:
    names = [row.attack for row in group.attacks if row.refused == row.observations]
    if not names:
        return []
    more = "a stronger attack may not need what they lack" if len(names) == len(group.attacks) else "others ran"
    return [f"Refused on every update: {listed(names)}; {more}."]


def _missing(group: _Group, plain: _Group | None) -> list[str]:
    if plain is None:
        return ["There is no undefended run with the same other settings among these: nothing to hold it against."]
    missing = {row.attack for row in plain.attacks} - {row.attack for row in group.attacks}
    return [f"Not tried against the defense: {listed(sorted(missing))}."] if missing else []
