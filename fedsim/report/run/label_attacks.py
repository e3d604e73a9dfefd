"""Attacks that are after labels alone: what becomes of them says nothing about pictures."""

from collections.abc import Iterable

from fedsim.report.run.read import RecordedRun
from fedsim.report.run.records import AttackRecord


def after_labels(runs: Iterable[tuple[RecordedRun, str]]) -> bool:
    """Whether one attack, under the name that each of these runs gives it, never tries to rebuild a picture.

    Its results say what it is after, those that it refused too. One that says images and leaves labels alone on
    every update counts by what it left.
    """
    records = [record for run, attack in runs for record in run.attacks if record.attack == attack]
    done = [record for record in records if record.status == "done"]
    return _stated(records) or (bool(done) and all(record.labels_alone for record in done))


def labels_of(run: RecordedRun) -> frozenset[str]:
    """Names of the run's attacks on labels alone."""
    names = {*run.names("attack"), *(record.attack for record in run.attacks)}
    return frozenset(name for name in names if after_labels([(run, name)]))


def _stated(records: list[AttackRecord]) -> bool:
    return any(record.target == "labels" for record in records)
