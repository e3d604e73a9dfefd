"""The numbers of a leakage matrix: cells, rows, and which rows nothing dominates. No files, no wording, no pictures."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fedsim.bounds.privacy import gdp
from fedsim.bounds.robustness import PROVEN_GAMMA, PROVEN_KAPPA, blow_up
from fedsim.report.level import Level, with_theorem
from fedsim.report.run.images.counts import Counts
from fedsim.report.thresholds import is_recognisable


@dataclass(frozen=True)
class MatrixCell:
    """One attack against one defense in one state of the model.

    Attributes:
        status: `done` (on one update at least, and failed on none), `refused` (on all), `failed` (on one at least), or
            `pending`.
        reason: the most frequent one of the updates on which the attack failed, else of those on which it refused.
        done, refused, failed: updates by outcome. All that follows is of those that were done or refused.
        pictures, rebuilt: private pictures behind them, and those for which the attack returned one.
        private_psnr: mean over the rebuilt pictures in dB, against the client's own picture before any defense.
        leakage: the same over *all* pictures: one that is not rebuilt counts as the guess, one above `EXACT` as that.
            None where the attack rebuilt nothing.
        baseline: mean PSNR of the guess in dB.
        recognised: share of all pictures whose private PSNR makes them recognisable, each by its own guess.
        as_seen: pictures that are recognisable as the model saw them, changed by a defense, and not against the
            client's own: what an eye finds in them PSNR does not tell.
        labelled: updates of which labels were recovered and scored.
        label_exact, label_share: share of these updates with every label right, and of all their labels the share that
            is right; None without labels.
        seconds: mean over the updates on which the attack ran to its end.
        batch: pictures in one update that the server sees.
        blind: as the column.
        counts: None where an earlier version counted less.
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
    labelled: int = 0
    label_exact: float | None = None
    label_share: float | None = None
    seconds: float | None = None
    batch: int | None = None
    blind: bool = False
    as_seen: int = 0
    counts: Counts | None = None

    @property
    def gain(self) -> float | None:
        """dB that the attack has over the guess; below 0 where it does worse."""
        return None if self.leakage is None or self.baseline is None else self.leakage - self.baseline

    @property
    def updates(self) -> int:
        return self.done + self.refused + self.failed

    @property
    def label_reach(self) -> float | None:
        """Rightly recovered labels as a share of those of all updates, which hold as many each."""
        return None if self.label_share is None else self.label_share * self.labelled / max(1, self.updates)

    @property
    def hidden(self) -> bool:
        """Pictures came out as the model saw them, and its leakage, which is not recognisable, does not say so."""
        return bool(self.as_seen) and self.leakage is not None and not is_recognisable(self.leakage, self.baseline)

    @property
    def ended(self) -> bool:
        """Every update was attacked, or the attack says why it does not apply: nothing about it is unknown."""
        return self.status in ("done", "refused")


@dataclass(frozen=True)
class RowState:
    """What became of one run of a row: `done`, `refused` or `failed` with a reason, or `pending`."""

    status: str = "pending"
    reason: str = ""
    seconds: float | None = None
    link: str | None = None


@dataclass(frozen=True)
class MatrixRow:
    """One defense, or none.

    Attributes:
        settings: the row as it was asked for.
        defended: False for a row that has the matrix's own model and no defense: what the others are compared with.
        mismatch: why its accuracy and its leakage are not of the same thing; empty where they are.
        accuracies: final test accuracy of each training that ended.
        train_seconds: mean wall time of all rounds of a training.
        measured: what the defense itself measured in the last round, by name (a mask ratio, of the first seed's
            training; ε of DP-SGD, the largest of all).
        client_failures: how often a client raised in all trainings together.
        unchanged: rounds of all trainings together that aggregated nothing.
        own: what is set of its training besides the defense, other than the first row's; None where an earlier version
            did not say.
        attacked: releases of an image in the updates of one state that are attacked, beside those of a training. Those
            of the other have the same noise, so that both together are no releases of their own. None as `own`. One
            of a single image tells no more than μ/√releases of a training, whichever clients had those.
        trainings: by seed; audits: by state.
        counts: over all its attacks that read what was shared, in all states; None where an earlier version counted
            less.
        pareto: `with_front` decides.
    """

    name: str
    settings: str = ""
    defended: bool = True
    mismatch: str = ""
    accuracies: tuple[float, ...] = ()
    train_seconds: float | None = None
    measured: dict[str, float] = field(default_factory=dict)
    client_failures: int = 0
    unchanged: int = 0
    own: tuple[str, ...] | None = ()
    attacked: int | None = 0
    trainings: dict[str, RowState] = field(default_factory=dict)
    audits: dict[str, RowState] = field(default_factory=dict)
    cells: tuple[MatrixCell, ...] = ()
    counts: Counts | None = None
    pareto: bool = False

    @property
    def level(self) -> Level | None:
        """None where an earlier version did not count what it takes."""
        proven = self.gamma is not None and self.gamma <= PROVEN_GAMMA
        return None if self.counts is None else with_theorem(self.counts.level, proven, self.counts.beyond_guess)

    @property
    def tested(self) -> bool:
        """Whether an attack came to an end with an image, as far as that was counted."""
        return self.counts is None or self.counts.level != "not tested"

    @property
    def gamma(self) -> float | None:
        """Reconstruction robustness at `PROVEN_KAPPA` after a training and what is attacked, the largest of its seeds.

        None without that theorem of every seed.
        """
        if self.attacked is None:
            return None
        mus = [mu * math.sqrt(1.0 + self.attacked / releases) for mu, releases in gdp(self.measured).values()]
        return blow_up(PROVEN_KAPPA, min(mus)) if mus else None

    @property
    def accuracy(self) -> float | None:
        return statistics.fmean(self.accuracies) if self.accuracies else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds; None for a single one."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    @property
    def baseline(self) -> float | None:
        """dB of the guess."""
        return next((cell.baseline for cell in self.cells if cell.baseline is not None), None)

    @property
    def batch(self) -> int | None:
        """Pictures in one update that the server sees."""
        return max((cell.batch for cell in self.cells if cell.batch is not None), default=None)

    @property
    def strongest(self) -> MatrixCell | None:
        """The cell that leaked most, over all states."""
        return self.strongest_in(None)

    @property
    def most_labels(self) -> MatrixCell | None:
        """The cell that recovered most labels, over all states; None where none did."""
        cells = [cell for cell in self._cells(None) if cell.label_reach is not None]
        return max(cells, key=lambda cell: cell.label_reach or 0.0, default=None)

    def strongest_in(self, state: str | None) -> MatrixCell | None:
        """The cell that leaked most; None where no attack does better than the guess."""
        cells = [
            cell for cell in self._cells(state) if cell.leakage is not None and (cell.gain is None or cell.gain > 0)
        ]
        return max(cells, key=lambda cell: (cell.leakage or 0.0, cell.private_psnr or 0.0), default=None)

    @property
    def leakage(self) -> float | None:
        return self.leakage_in(None)

    def leakage_in(self, state: str | None) -> float | None:
        """dB of the strongest attack, at least those of the guess: an attacker who knows that it is better submits it.

        None where any attack is still to come or failed, which might have been the strongest, and where the row was not
        tested: the guess alone is no leakage.
        """
        if not self.tested or not self._known(state):
            return None
        values = [cell.leakage for cell in self._cells(state)]
        return max((value for value in (*values, self.baseline) if value is not None), default=None)

    @property
    def gain(self) -> float | None:
        """dB over the guess, 0 or more."""
        return None if self.leakage is None or self.baseline is None else self.leakage - self.baseline

    @property
    def recognised(self) -> float | None:
        """The largest share of pictures that an attack makes recognisable; None where the leakage is."""
        shares = [cell.recognised for cell in self._cells(None) if cell.recognised is not None]
        return None if self.leakage is None else max(shares, default=0.0)

    @property
    def as_seen(self) -> bool:
        """Pictures came out as the model saw them, changed by a defense: its leakage in dB does not tell."""
        return self.seen_in(None) is not None

    def seen_in(self, state: str | None) -> MatrixCell | None:
        """The cell in which most pictures came out as the model saw them; None where none did, or the row leaks more
        than that by PSNR.
        """
        if is_recognisable(self.leakage_in(state), self.baseline):
            return None
        return max(
            (cell for cell in self._cells(state) if cell.hidden), key=lambda cell: cell.as_seen or 0, default=None
        )

    @property
    def placed(self) -> bool:
        """It has a place in the plane of accuracy and leakage."""
        known = self.accuracy is not None and self.leakage is not None
        return known and not self.mismatch and not self.as_seen

    def _cells(self, state: str | None) -> list[MatrixCell]:
        """Those of attacks that read what was shared."""
        return [cell for cell in self.cells if state in (None, cell.state) and not cell.blind]

    def _known(self, state: str | None) -> bool:
        cells = self._cells(state)
        audits = [stage for name, stage in self.audits.items() if state in (None, name)]
        return bool(cells) and all(cell.ended for cell in cells) and all(stage.status == "done" for stage in audits)


@dataclass(frozen=True)
class MatrixColumn:
    """One attack: as it was asked for, and every setting of it, budgets included.

    Attributes:
        blind: it never reads what was shared (`baseline = True` in its class): shown, and no row's leakage.
        knows: what it needs to know beside the shared tensors and the protocol.
    """

    name: str
    asked: str
    settings: str
    blind: bool = False
    knows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Matrix:
    """Attacks × defenses.

    Attributes:
        facts: (name, value) of the setting in which all of it was measured.
        test_pictures: how many every accuracy is a share of; None where that is not known.
        finished: no run is missing.
        seconds: wall time of the calls that made it, together.
    """

    name: str
    facts: tuple[tuple[str, str], ...]
    columns: tuple[MatrixColumn, ...]
    states: tuple[str, ...]
    rows: tuple[MatrixRow, ...]
    test_pictures: int | None = None
    finished: bool = False
    seconds: float | None = None

    @property
    def attacks(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def blind(self) -> frozenset[str]:
        """The attacks that never read what was shared."""
        return frozenset(column.name for column in self.columns if column.blind)

    @property
    def reading(self) -> tuple[str, ...]:
        """The others."""
        return tuple(name for name in self.attacks if name not in self.blind)

    @property
    def batches(self) -> tuple[int | None, ...]:
        """Sizes of an update, the smallest first: rows of different ones are never held against each other."""
        return tuple(sorted({row.batch for row in self.rows}, key=lambda batch: (batch is None, batch)))

    def rows_of(self, batch: int | None) -> tuple[MatrixRow, ...]:
        return tuple(row for row in self.rows if row.batch == batch)

    def to_dict(self) -> dict[str, Any]:
        """JSON, with what follows from the numbers beside them."""
        rows = []
        for row in self.rows:
            cells = [{**asdict(cell), "gain": cell.gain} for cell in row.cells]
            follows = {name: getattr(row, name) for name in FOLLOWS}
            strongest = None if row.strongest is None else row.strongest.attack
            rows.append({**asdict(row), **follows, "strongest": strongest, "cells": cells})
        return {**asdict(self), "rows": rows}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Matrix":
        """Raises KeyError or TypeError: the values are no matrix."""
        return cls(
            **{key: values[key] for key in ("name", "test_pictures", "finished", "seconds")},
            facts=tuple((name, value) for name, value in values["facts"]),
            columns=tuple(MatrixColumn(**{**one, "knows": tuple(one.get("knows", ()))}) for one in values["columns"]),
            states=tuple(values["states"]),
            rows=tuple(_row(row) for row in values["rows"]),
        )


FOLLOWS = ("level", "gamma", "accuracy", "spread", "batch", "leakage", "gain", "recognised", "baseline", "as_seen")
"""Of a row: written for readers of the file, computed anew by whoever loads it."""


def with_front(rows: Sequence[MatrixRow]) -> tuple[MatrixRow, ...]:
    """The rows with the defenses on the Pareto front marked: no other is as accurate and leaks less, or the reverse.

    A front for each size of an update. Undefended rows dominate others, and are never marked themselves.
    """
    points: dict[int | None, list[tuple[float, float]]] = {}
    for row in rows:
        if row.placed:
            points.setdefault(row.batch, []).append(_point(row))
    fronts = {batch: pareto_front(group) for batch, group in points.items()}
    return tuple(replace(row, pareto=row.defended and row.placed and _point(row) in fronts[row.batch]) for row in rows)


def pareto_front(points: Iterable[tuple[float, float]]) -> set[tuple[float, float]]:
    """The points (accuracy, leakage) that no other dominates: higher accuracy is better, lower leakage is better."""
    front: set[tuple[float, float]] = set()
    least = math.inf
    for accuracy, leakage in sorted(set(points), key=lambda point: (-point[0], point[1])):
        if leakage < least:
            front.add((accuracy, leakage))
            least = leakage
    return front


def _point(row: MatrixRow) -> tuple[float, float]:
    assert row.accuracy is not None
    assert row.leakage is not None
    return row.accuracy, row.leakage


def _row(values: Mapping[str, Any]) -> MatrixRow:
    plain = ("name", "settings", "defended", "mismatch", "train_seconds", "measured", "client_failures", "pareto")
    return MatrixRow(
        **{key: values[key] for key in plain},
        unchanged=values.get("unchanged", 0),
        own=tuple(values["own"]) if values.get("own") is not None else None,
        attacked=values.get("attacked"),
        accuracies=tuple(values["accuracies"]),
        trainings={name: RowState(**stage) for name, stage in values["trainings"].items()},
        audits={name: RowState(**stage) for name, stage in values["audits"].items()},
        cells=tuple(_read_cell(cell) for cell in values["cells"]),
        counts=_counts(values),
    )


def _read_cell(values: Mapping[str, Any]) -> MatrixCell:
    plain = {key: value for key, value in values.items() if key not in ("gain", "counts", "as_seen")}
    plain.setdefault("labelled", values["done"])  # as far as an earlier version tells
    return MatrixCell(**plain, as_seen=values.get("as_seen") or 0, counts=_counts(values))


def _counts(values: Mapping[str, Any]) -> Counts | None:
    """None of an earlier version, which did not write them."""
    return Counts(**values["counts"]) if "ahead" in (values.get("counts") or {}) else None
