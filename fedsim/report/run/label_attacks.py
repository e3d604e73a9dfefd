"""Attacks that are after labels alone: what becomes of them says nothing about pictures."""

from collections.abc import Iterable, Mapping

from fedsim.report.run.read import RunFolder
from fedsim.report.run.records import AttackRecord

AFTER_LABELS = "attacks.label."
AFTER_PICTURES = tuple(f"attacks.{package}." for package in ("analytic", "generative", "learned", "optimization"))
"""The project's own packages of attacks: one that refuses or fails leaves nothing else to tell it by."""


def after_labels(runs: Iterable[tuple[RunFolder, str]]) -> bool:
    """Whether one attack, under the name that each of these runs gives it, never tries to rebuild a picture.

    The project's own are known by their package; others by what they left in all of these runs.
    """
    records: list[AttackRecord] = []
    for run, attack in runs:
        target = _target(run, attack)
        if target.startswith((AFTER_LABELS, *AFTER_PICTURES)):
            return target.startswith(AFTER_LABELS)
        records += [record for record in run.attacks if record.attack == attack and record.status == "done"]
    return bool(records) and all(record.labels_alone for record in records)


def labels_of(run: RunFolder) -> frozenset[str]:
    """Names of the run's attacks on labels alone."""
    names = {*run.names("attack"), *(record.attack for record in run.attacks)}
    return frozenset(name for name in names if after_labels([(run, name)]))


def _target(run: RunFolder, attack: str) -> str:
    every = run.setting("attack")
    settings = every.get(attack) if isinstance(every, Mapping) else None
    return str(settings.get("_target_") or "") if isinstance(settings, Mapping) else ""
