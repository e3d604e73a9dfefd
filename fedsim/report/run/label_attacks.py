"""Attacks that are after labels, or after what else is no image: what becomes of them says nothing about images."""

from collections.abc import Iterable

from fedsim.report.run.read import RecordedRun
from fedsim.report.run.records import AttackRecord
from fedsim.report.wording import listed


def after_labels(runs: Iterable[tuple[RecordedRun, str]]) -> bool:
    """Whether one attack, under the name that each of these runs gives it, never tries to rebuild an image.

    Its results say what it is after, those that it refused too. One that says images and leaves labels alone on
    every update counts by what it left.
    """
    records = [record for run, attack in runs for record in run.attacks if record.attack == attack]
    done = [record for record in records if record.status == "done"]
    return _stated(records) or (bool(done) and all(record.only_labels for record in done))


def labels_of(run: RecordedRun) -> frozenset[str]:
    """Names of the run's attacks on labels alone, and of others that are not after images."""
    names = {*run.names("attack"), *(record.attack for record in run.attacks)}
    return frozenset(name for name in names if after_labels([(run, name)]))


def only_attacked(records: Iterable[AttackRecord]) -> str:
    """`Only labels were attacked`, where nothing was after images."""
    targets = sorted({"labels" if one.target in (None, "images") else one.target for one in records}) or ["labels"]
    return f"Only {listed(targets)} {'were' if len(targets) > 1 or targets[0].endswith('s') else 'was'} attacked"


def _stated(records: list[AttackRecord]) -> bool:
    return any(record.target not in (None, "images") for record in records)
