"""Where a leakage matrix stands: what has ended, what it gave, and how long the rest will take."""

import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import getLogger
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from experiments.cli.progress import Bars
from experiments.matrix.rows import Asked
from experiments.matrix.units import AUDIT, TRAINING, MatrixRun, UnitEnd, copies_of, judges_updates, updates_of
from fedsim.report.compare.settings import flatten
from fedsim.report.matrix.cells import Matrix, MatrixCell, MatrixColumn, MatrixRow, RowState, with_front
from fedsim.report.matrix.read import over_seeds, read_cells, read_counts, read_training
from fedsim.report.matrix.wording import counts_text, leakage_text
from fedsim.report.wording import count, duration, percent
from fedsim.settings.commands import MatrixConfig
from fedsim.settings.schema import plain
from fedsim.storage.json_objects import DamagedFileError, read_object

logger = getLogger(__name__)

TRAINED = ("data", "partition", "strategy", "num_clients", "num_rounds")
"""Of a training's settings, beside the batch: what is no defense where a row has its own."""

SECONDS_BETWEEN_LOOKS = 1.0


@dataclass
class MatrixProgress:
    """The runs of a matrix and what became of them.

    Attributes:
        units: all runs, row by row.
        test_pictures: how many the accuracies are shares of.
        ends: of those that ended, in this call or an earlier one.
        workers: how many run side by side.
    """

    config: MatrixConfig
    root: Path
    rows: Sequence[Asked]
    columns: Sequence[MatrixColumn]
    units: Sequence[MatrixRun]
    test_pictures: int | None = None
    ends: dict[MatrixRun, UnitEnd] = field(default_factory=dict)
    running: list[MatrixRun] = field(default_factory=list)
    workers: int = 1
    start: float = field(default_factory=time.perf_counter)
    _seconds: dict[str, list[float]] = field(default_factory=lambda: {TRAINING: [], AUDIT: []})

    def __post_init__(self) -> None:
        """The wall time of earlier calls stands in what they wrote."""
        path = self.root / "matrix.json"
        try:
            self._before = float(read_object(path).get("seconds") or 0.0) if path.is_file() else 0.0
        except DamagedFileError as error:  # it is written anew from the runs
            logger.warning("%s; the seconds of earlier calls are not counted", error)
            self._before = 0.0

    @property
    def attacks(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def seconds(self) -> float:
        """Of all calls together."""
        return self._before + time.perf_counter() - self.start

    def end(self, unit: MatrixRun, end: UnitEnd) -> None:
        """A unit has ended in this call."""
        self.ends[unit] = end
        if unit in self.running:
            self.running.remove(unit)
        if end.seconds is not None:
            self._seconds[unit.kind].append(end.seconds)

    def seconds_left(self) -> float | None:
        """By the mean of what has ended in this call; None as long as none of a kind has that is still to come."""
        left = 0.0
        for kind, taken in self._seconds.items():
            missing = sum(unit.kind == kind and unit not in self.ends for unit in self.units)
            if missing and not taken:
                return None
            left += missing * statistics.fmean(taken) if missing else 0.0
        return left / self.workers

    def trained(self) -> tuple[int, int]:
        """Trainings that ended, and all."""
        trainings = [unit for unit in self.units if unit.kind == TRAINING]
        return sum(unit in self.ends for unit in trainings), len(trainings)

    def cells_done(self) -> int:
        """Cells that nothing is missing of: those of audits that ended, and the finished ones of running audits."""
        audits = [unit for unit in self.units if unit.kind == AUDIT]
        ended = sum(len(self.attacks) for unit in audits if unit in self.ends)
        return ended + sum(
            cell.status != "pending" for unit in list(self.running) if unit.kind == AUDIT for cell in self.cells(unit)
        )

    @property
    def cells_in_all(self) -> int:
        return len(self.attacks) * sum(unit.kind == AUDIT for unit in self.units)

    def cells(self, audit: MatrixRun) -> list[MatrixCell]:
        updates = updates_of(audit)
        if updates is None:
            cells = [MatrixCell(attack, audit.label) for attack in self.attacks]
        else:
            cells = read_cells(audit.folder, audit.label, self.attacks, updates)
        return [replace(cell, blind=column.blind) for cell, column in zip(cells, self.columns, strict=True)]

    def stage(self, unit: MatrixRun) -> RowState:
        """The unit as the page shows it."""
        end = self.ends.get(unit, UnitEnd("pending"))
        page = unit.folder / "report.html"
        link = page.relative_to(self.root.resolve()).as_posix() if page.is_file() else None
        return RowState(end.status, end.reason, end.seconds, link)


class Watch(threading.Thread):
    """Moves the bars while the runs keep this process busy, or run in others."""

    def __init__(self, progress: MatrixProgress, bars: Bars) -> None:
        super().__init__(name="progress of the matrix", daemon=True)
        self._progress = progress
        self._bars = bars
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._show()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self.join()
        self._show()

    def run(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_LOOKS):
            self._show()

    def _show(self) -> None:
        progress = self._progress
        trained, trainings = progress.trained()
        self._bars.set("trainings", trained, trainings)
        done, total, note = progress.cells_done(), progress.cells_in_all, _note(progress)
        self._bars.set("cells", done, total, note)
        if note:
            self._bars.say_now_and_then(f"{trained}/{trainings} trainings, {done}/{total} cells; running: {note}")


def read_matrix(progress: MatrixProgress) -> Matrix:
    """The numbers as the folders hold them now."""
    ended = [progress.ends.get(unit) for unit in progress.units]
    return Matrix(
        name=progress.root.resolve().name,
        facts=_facts(progress),
        columns=tuple(progress.columns),
        states=progress.config.matrix.states,
        rows=with_front([_row(progress, entry) for entry in progress.rows]),
        test_pictures=progress.test_pictures,
        finished=all(end is not None and end.status != "failed" for end in ended),
        seconds=progress.seconds,
    )


def describe_end(progress: MatrixProgress, unit: MatrixRun, end: UnitEnd) -> str:
    """`row mjp (training, seed 0): accuracy 91.2 %  (3/16 trainings, 21/112 cells, about 4 min left)`."""
    told = end.reason
    if end.status == "done" and unit.kind == TRAINING:
        told = f"accuracy {percent(read_training(unit.folder, ())[0])}"  # its own: the row's is the mean over seeds
    elif end.status == "done":
        row = _row(progress, next(entry for entry in progress.rows if entry.name == unit.row))
        told = _describe_audit(row, unit.label)
    words = "" if end.status == "done" else f"{end.status}, "
    trained, trainings = progress.trained()
    where = f"{trained}/{trainings} trainings, {progress.cells_done()}/{progress.cells_in_all} cells"
    left = progress.seconds_left()
    rest = "" if left is None or len(progress.ends) == len(progress.units) else f", about {duration(left)} left"
    return f"{unit.title}: {words}{told}  ({where}{rest})"


def _describe_audit(row: MatrixRow, state: str) -> str:
    strongest, seen = row.strongest_in(state), row.seen_in(state)
    told = "no attack is better than a guess on average"
    if seen is not None:
        told = f"{seen.as_seen} of {count(seen.pictures, 'image')} as the model saw them, by {seen.attack}"
    elif strongest is not None:
        told = f"{leakage_text(strongest.leakage)} dB by {strongest.attack}"
    if row.counts is not None:
        told = f"{row.level}, {counts_text(row.counts)}" + (f"; {told}" if row.counts.ended else "")
    failed = [cell.attack for cell in row.cells if cell.state == state and cell.failed]
    return f"{told}; {', '.join(failed)} failed" if failed else told


def _note(progress: MatrixProgress) -> str:
    running = "; ".join(unit.title for unit in list(progress.running)[: progress.workers])
    left = progress.seconds_left()
    return running if left is None or not running else f"{running}; about {duration(left)} left"


def _row(progress: MatrixProgress, entry: Asked) -> MatrixRow:
    units = [unit for unit in progress.units if unit.row == entry.name]
    trainings = [unit for unit in units if unit.kind == TRAINING]
    audits = [unit for unit in units if unit.kind == AUDIT]
    trained = [unit for unit in trainings if (end := progress.ends.get(unit)) is not None and end.status == "done"]
    results = [read_training(unit.folder, unit.config["defense"]) for unit in trained]
    begun = [unit for unit in audits if unit not in progress.ends or progress.ends[unit].status == "done"]
    return MatrixRow(
        name=entry.name,
        settings=entry.settings,
        defended=any(
            unit.config["defense"] or _as_trained(unit.config) != _as_trained(plain(progress.config))
            for unit in trainings
        ),
        mismatch=_mismatch(trainings, begun),
        accuracies=tuple(accuracy for accuracy, *_ in results if accuracy is not None),
        train_seconds=statistics.fmean(seconds for _, seconds, *_ in results) if results else None,
        measured=over_seeds([measured for _, _, measured, *_ in results], len(trainings)),
        client_failures=sum(raised for *_, raised, _ in results),
        unchanged=sum(unchanged for *_, unchanged in results),
        own=_own(progress.units[0].config, trainings[0].config) if trainings else (),
        attacked=_attacked(audits),
        trainings={unit.label: progress.stage(unit) for unit in trainings},
        audits={unit.label: progress.stage(unit) for unit in audits},
        cells=tuple(cell for unit in begun for cell in progress.cells(unit)),
        counts=read_counts(
            (unit.folder for unit in begun),
            progress.attacks,
            {column.name for column in progress.columns if column.blind},
        ),
    )


def _attacked(audits: Sequence[MatrixRun]) -> int | None:
    """Releases of an image in the attacked updates of one state, at most: copies in one update move it as many times
    as far, as their number squared of releases does (`with_copies`). None where nobody counted the copies.
    """
    found = [(copies_of(unit), _releases(unit.config["client"])) for unit in audits]
    known = [copies**2 * releases for copies, releases in found if copies is not None]
    return max(known, default=0) if len(known) == len(found) else None


def _releases(client: Mapping[str, Any]) -> int:
    """Of an image in one update of an audit, whose client holds no other images than those of its one batch."""
    return 1 if client["share"] == "gradient" else int(client["local_steps"] or client["local_epochs"])


def _own(first: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[str, ...]:
    """What a row's training is set to, other than the first's, which is no defense: batches, clients, rounds."""
    before, now = (
        flatten({"client": {"batch_size": one["client"]["batch_size"]}} | {name: one.get(name) for name in TRAINED})
        for one in (first, config)
    )
    keys = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
    return tuple(f"{key}={now.get(key)}" for key in keys)


def _as_trained(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of what clients train and how, which a row may have of its own; their number of images is no defense."""
    client = {name: value for name, value in config["client"].items() if name not in ("batch_size", "device")}
    return {"model": config["model"], "finetune": config["finetune"], "client": client}


def _mismatch(trainings: Sequence[MatrixRun], audits: Sequence[MatrixRun]) -> str:
    """Why a row's accuracy is not that of what its audits attacked; empty where it is."""
    trained = {int(unit.config["client"]["batch_size"]) for unit in trainings}
    for audit in audits:
        audited = int(audit.config["client"]["batch_size"])
        if judges_updates(audit) and trained != {audited}:
            sizes = ", ".join(map(str, sorted(trained)))
            return (
                f"which updates it shares depends on the batch: trained with {sizes}, audited with {audited} images; "
                "client.batch_size and audit.batch_size would have to be the same"
            )
    return ""


def _facts(progress: MatrixProgress) -> tuple[tuple[str, str], ...]:
    config = progress.config
    audit, client, model = config.audit, config.client, config.model
    rounds = f"{config.num_clients} clients, {config.num_rounds} rounds"
    facts = {
        "Model": model["name"],
        "Data": str(config.data.get("_target_", "")).rsplit(".", 1)[-1],
        "Strategy": str(config.strategy.get("_target_", "")).rsplit(".", 1)[-1],
        "Training": f"{rounds}, batches of {client.batch_size}",
        "Trainings a row": config.matrix.seeds,
        "Test images": progress.test_pictures,
        "Audited": f"{audit.count} images in updates of {audit.batch_size}, where a row says nothing else",
        "Shared": client.share,
        "Seed": config.seed,
    }
    return tuple((name, str(value)) for name, value in facts.items())
