"""The settings of a run as flat text, for holding runs against each other."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedsim.report.run.read import RecordedRun

Settings = frozenset[tuple[str, str]]
"""Dotted keys and values."""

HIDDEN_GROUPS = ("output", "run", "hydra")
"""Beginnings of groups that say where a run lies, not what it did."""

ENGINE_GROUPS = ("simulation", "ray", "tracker", "resume")
"""Groups that say how a run was computed; its numbers do not depend on them."""

OBJECTS = "data.defense_digest"
"""Of defenses that came as objects in Python: a setting of theirs, though not among them."""

KNOWS = "knows"
"""The key under which an attack declares what it needs to know."""


def knows(run: RecordedRun, attack: str) -> tuple[str, ...]:
    """What the attack declares that it needs to know; nothing in folders of earlier versions."""
    found = run.settings_of(attack).get(KNOWS)
    return tuple(map(str, found)) if isinstance(found, list) else ()


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Every leaf by its dotted key."""
    values: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            values |= flatten({str(name): item for name, item in value.items()}, f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = str(value)
    return values


def defense_name(run: RecordedRun) -> str:
    """`mjp + fixed_pe`, or `none`."""
    return " + ".join(run.names("defense")) or "none"


def apart_from_defense(run: RecordedRun) -> Settings:
    """What a fair comparison of defenses holds equal: all but defense, attack, bounds, seeds and engine.

    A file of weights is its content: trained once more, it has the same name.
    """
    weights = {("weights", run.weights[:8])} if run.weights else set[tuple[str, str]]()
    return frozenset((key, value) for key, value in _of_the_pictures(run) if key.split(".")[-1] != "seed") | weights


def seeds(run: RecordedRun) -> Settings:
    """The settings that decide the draws of a run, of its attacks' and defenses' own apart."""
    return frozenset((key, value) for key, value in _of_the_pictures(run) if key.split(".")[-1] == "seed")


def _of_the_pictures(run: RecordedRun) -> Settings:
    left_out = (*HIDDEN_GROUPS, *ENGINE_GROUPS, "defense", "attack", "bound")
    return frozenset(
        (key, value)
        for key, value in flatten(run.config).items()
        if key != OBJECTS and not key.split(".")[0].startswith(left_out)
    )


def defense_settings(run: RecordedRun) -> Settings:
    """Names and values of its defenses."""
    defense = run.setting("defense")
    if not defense:
        return frozenset()
    objects = {(key, value) for key, value in flatten(run.config).items() if key == OBJECTS}
    return frozenset(flatten(defense).items()) | {("", name) for name in run.names("defense")} | objects


def own_settings(settings: Settings, others: Sequence[Settings]) -> list[str]:
    """`key=value` of those that not all of the others have."""
    return sorted(f"{key}={value}" for key, value in settings if any((key, value) not in one for one in others))


def telling_settings(settings: Settings, others: Sequence[Settings]) -> list[str]:
    """`key=value` of few of them, all of which none of the others has."""
    left, found = [one for one in others if settings - one], list[str]()
    while left:
        best = min(sorted(settings), key=lambda one: sum(one in other for other in left))
        found.append("=".join(best))
        left = [other for other in left if best in other]
    return found
