"""The numbers of a run: from records to counts, means and rates. No wording, no pictures."""

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fedsim.metrics.records import SHOWN
from fedsim.report.run.certificates import of_images
from fedsim.report.run.read import RecordedRun
from fedsim.report.run.records import AttackRecord, ImageRecord
from fedsim.report.thresholds import EXACT, INDISTINGUISHABLE, RECOGNISABLE
from fedsim.storage.run_folder import UNCHANGED

NUMBER = re.compile(r"(?<![\w.,])[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?(?!\w)")
"""One that stands alone: that of `blocks.0` or `conv1` is part of a name."""

ByRound = list[tuple[int, float]]

THRESHOLDS = (RECOGNISABLE, 30.0, INDISTINGUISHABLE)
"""dB of PSNR at which the success rates are given."""


@dataclass(frozen=True)
class AttackSummary:
    """One attack over all observations. Rates are in [0, 1]; None where there is nothing to count.

    Attributes:
        done, refused, failed: observations by outcome.
        retried: observations that took more than one attempt.
        certified, wrongly_certified: observations whose result the attack itself vouches for, and those of them where
            the audit found it wrong.
        pictures: private pictures behind the observations on which the attack ran to its end and was scored.
        rebuilt: those that the attack returned and that were scored.
        recognisable: those that can be recognised as the clients' own.
        as_seen: those that can be recognised as the model saw them, changed by a defense, and not as the clients' own.
        twofold: pictures have two scores, as `ImageRecord.twofold`.
        mean_psnr, min_seen_psnr, seen_success: against what the model saw; the means and the
            least are over each form of a picture by itself.
        mean_recognisable: of those that can be recognised as the clients' own, against these.
        mean_leaked, min_psnr, max_psnr, success: against the clients' own pictures. Means in dB are of `mean_psnr`.
        means: by each other measure that is shown, against what the model saw and against the clients' own pictures.
        mean_capped, mean_seen_capped: as `mean_leaked` and `mean_psnr`, a picture above `EXACT` counting as that: more
            is rounding.
        success, seen_success: share of those with at least so many dB, by threshold, that are recognisable; a picture
            not rebuilt is a miss.
        certified_labels: of the certificates those of labels alone.
        labelled: observations of which labels were recovered and scored.
        label_share: recovered labels as a share of all of these, weighted by batch size.
        label_reach: the same labels as a share of those of all observations, by which attacks are ranked.
        exact_batches: share of observations with every label right.
    """

    attack: str
    done: int
    refused: int
    failed: int
    retried: int
    certified: int
    certified_labels: int
    wrongly_certified: int
    pictures: int
    rebuilt: int
    recognisable: int
    as_seen: int
    twofold: bool
    mean_psnr: float | None
    mean_recognisable: float | None
    mean_leaked: float | None
    mean_capped: float | None
    mean_seen_capped: float | None
    min_psnr: float | None
    min_seen_psnr: float | None
    max_psnr: float | None
    means: dict[str, tuple[float | None, float | None]]
    success: dict[float, float | None]
    seen_success: dict[float, float | None]
    labelled: int
    label_share: float | None
    label_reach: float | None
    exact_batches: float | None
    median_seconds: float | None
    total_seconds: float

    @property
    def observations(self) -> int:
        return self.done + self.refused + self.failed

    @property
    def recognised(self) -> float | None:
        """Share of the pictures that can be recognised, as the clients' own or as the model saw them."""
        measured = self.success[RECOGNISABLE] is not None
        return (self.recognisable + self.as_seen) / self.pictures if measured else None


@dataclass(frozen=True)
class Group:
    """So many observations with the same outcome for the same reason, numbers in it aside.

    Attributes:
        reason: its most frequent wording.
        wordings: how many there are.
    """

    attack: str
    reason: str
    count: int
    wordings: int


@dataclass(frozen=True)
class ClientFailure:
    number: int
    client: str
    error: str


@dataclass(frozen=True)
class RunTimes:
    """Wall time of the rounds and of the whole run in seconds."""

    rounds: int
    total: float | None
    median: float | None
    slowest: float | None
    slowest_round: int | None
    run: float | None


def summarise_attacks(run: RecordedRun) -> list[AttackSummary]:
    """One row per attack, strongest first: most recognisable pictures, then highest mean PSNR up to `EXACT`."""
    names = dict.fromkeys(record.attack for record in run.attacks)
    rows = [_summarise(name, [record for record in run.attacks if record.attack == name]) for name in names]
    return sorted(rows, key=strength, reverse=True)


def strength(row: AttackSummary) -> tuple[int, float, float, int, float]:
    """What ranks attacks: a larger tuple is a stronger attack."""
    return (
        row.recognisable + row.as_seen,
        row.mean_capped or 0.0,
        row.mean_leaked or 0.0,
        row.certified,
        row.label_reach or 0.0,
    )


def by_round(run: RecordedRun, attack: str) -> list[tuple[int, list[AttackRecord]]]:
    """The scored results of an attack, by their round."""
    found: dict[int, list[AttackRecord]] = {}
    for record in run.attacks:
        if record.attack == attack and record.status == "done" and record.scored and record.number is not None:
            found.setdefault(record.number, []).append(record)
    return sorted(found.items())


def leakage_by_round(run: RecordedRun, attack: str) -> ByRound:
    """(round, mean PSNR in dB against the clients' own images) of every round with a scored result."""
    means = [(number, mean_psnr(_psnrs(rows))) for number, rows in by_round(run, attack)]
    return [(number, value) for number, value in means if value is not None]


def right_share(records: Iterable[AttackRecord]) -> float:
    """Recovered labels as a share of all, weighted by batch size; without scored labels a result recovered none."""
    labelled = [(record.label_share or 0.0, max(record.batch_size, 1)) for record in records]
    return sum(share * size for share, size in labelled) / sum(size for _, size in labelled)


def most_labels(rows: Iterable[AttackSummary]) -> list[AttackSummary]:
    """Those that recovered labels, who recovered most of all observed ones first."""
    return sorted((row for row in rows if row.label_reach is not None), key=lambda row: -(row.label_reach or 0.0))


def psnr_values(run: RecordedRun, attack: str) -> list[float]:
    """Every scored picture of an attack, in dB."""
    return _psnrs([record for record in run.attacks if record.attack == attack and record.status == "done"])


def final_accuracy(run: RecordedRun) -> float | None:
    """The accuracy of the last round that has one."""
    return last_accuracy(run)[1]


def last_accuracy(run: RecordedRun) -> tuple[int, float | None]:
    """The last round that has an accuracy, and that; (0, None) without any."""
    known = [(record.number, record.accuracy) for record in run.rounds if record.accuracy is not None]
    return known[-1] if known else (0, None)


def refusals(run: RecordedRun) -> list[Group]:
    return _grouped(record for record in run.attacks if record.status == "refused")


def attack_failures(run: RecordedRun) -> list[Group]:
    """Attacks that raised or ran out of time. A status that is none of the known ones counts as failed."""
    return _grouped(record for record in run.attacks if record.status not in ("done", "refused"))


def remarks(run: RecordedRun) -> list[Group]:
    """What else attacks that came to an end say of their results."""
    return _grouped(record for record in run.attacks if record.status == "done" and record.reason)


def uncertified(run: RecordedRun) -> list[Group]:
    """Images that an attack returned and did not vouch for, by the reason that its certificate gives."""
    return _grouped(
        replace(record, reason=record.certificate_reason)
        for record in run.attacks
        if record.status == "done" and record.certificate == "uncertified" and any(i.rebuilt for i in record.images)
    )


def client_failures(run: RecordedRun) -> list[ClientFailure]:
    """Clients that raised; a round that left the model as it was is the failure of none."""
    return [
        ClientFailure(row.number, failure.client, failure.error)
        for row in run.rounds
        for failure in row.failures
        if failure.error != UNCHANGED
    ]


def unchanged_rounds(run: RecordedRun) -> list[int]:
    """Rounds without an aggregate: accuracy and updates after them are those of the model before."""
    rounds = [one for one in run.rounds if one.number]
    return [one.number for one in rounds if any(failure.error == UNCHANGED for failure in one.failures)]


def run_times(run: RecordedRun) -> RunTimes:
    seconds = run.round_seconds
    slowest = max(seconds, key=lambda number: seconds[number], default=None)
    return RunTimes(
        rounds=len(seconds),
        total=sum(seconds.values()) if seconds else None,
        median=statistics.median(seconds.values()) if seconds else None,
        slowest=None if slowest is None else seconds[slowest],
        slowest_round=slowest,
        run=run.seconds,
    )


def mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def mean_psnr(values: Sequence[float]) -> float | None:
    """In dB. One above `EXACT` counts as that, lest it outweigh the others; unless all are, which are that exact."""
    return mean(values if min(values, default=EXACT) > EXACT else [min(value, EXACT) for value in values])


def _summarise(name: str, records: list[AttackRecord]) -> AttackSummary:
    done = [record for record in records if record.status == "done"]
    refused = sum(record.status == "refused" for record in records)
    scored = [record for record in done if record.scored]
    values, pictures = _psnrs(done), _pictures(scored)
    images = [image for record in done for image in record.images]
    seen = [image.psnr for image in images if image.psnr is not None]
    own = [image for record in done for image in record.pictures.values()]
    forms = [found for record in done for found in record.forms.values()]
    labelled = [record for record in done if record.label_share is not None]
    exact = [record.label_exact for record in done if record.label_exact is not None]
    seconds = [record.seconds for record in done if record.seconds is not None]
    return AttackSummary(
        attack=name,
        done=len(done),
        refused=refused,
        failed=len(records) - len(done) - refused,
        retried=sum(record.attempts > 1 for record in records),
        certified=sum(record.certified for record in done),
        certified_labels=sum(record.certified and not of_images(record) for record in done),
        wrongly_certified=sum(record.wrongly_certified for record in done),
        pictures=pictures,
        rebuilt=len(values),
        recognisable=sum(image.recognisable for image in own),
        as_seen=sum(
            any(image.as_seen for image in found) and not plain.recognisable
            for found, plain in zip(forms, own, strict=True)
        ),
        twofold=any(image.twofold for image in images),
        mean_psnr=mean_psnr(seen),
        mean_recognisable=mean_psnr([one.leaked for one in own if one.recognisable and one.leaked is not None]),
        mean_leaked=mean_psnr(values),
        mean_capped=mean([min(value, EXACT) for value in values]),
        mean_seen_capped=mean([min(value, EXACT) for value in seen]),
        min_psnr=min(values, default=None),
        min_seen_psnr=min(seen, default=None),
        max_psnr=max(values, default=None),
        means={name: _means(name, images, own) for name in SHOWN},
        success=_shares([[image.leaked if image.recognisable else None] for image in own], pictures, values),
        seen_success=_shares([[_seen(image) for image in found] for found in forms], pictures, values),
        labelled=len(labelled),
        label_share=right_share(labelled) if labelled else None,
        label_reach=right_share(records) if labelled else None,
        exact_batches=sum(exact) / len(exact) if exact else None,
        median_seconds=statistics.median(seconds) if seconds else None,
        total_seconds=sum(record.seconds or 0.0 for record in records),
    )


def _means(name: str, images: Iterable[ImageRecord], own: Iterable[ImageRecord]) -> tuple[float | None, float | None]:
    """Against what the model saw, and against the clients' own."""
    seen = [image.scores[name] for image in images if name in image.scores]
    return mean(seen), mean([score for image in own if (score := image.leaked_by(name)) is not None])


def _psnrs(records: Iterable[AttackRecord]) -> list[float]:
    return [image.leaked for record in records for image in record.pictures.values() if image.leaked is not None]


def _pictures(records: Iterable[AttackRecord]) -> int:
    return sum(record.batch_size for record in records)


def _seen(image: ImageRecord) -> float | None:
    return image.psnr if image.seen_recognisable else None


def _shares(
    found: Sequence[Sequence[float | None]], pictures: int, scored: Sequence[float]
) -> dict[float, float | None]:
    """By threshold; None where no picture was compared at all, as with attacks on the labels alone.

    Args:
        found: for each picture what its recognisable results reach in dB.
    """
    best = [max((value for value in values if value is not None), default=0.0) for values in found]
    known = bool(scored) and pictures > 0
    return {level: sum(value >= level for value in best) / pictures if known else None for level in THRESHOLDS}


def _grouped(records: Iterable[AttackRecord]) -> list[Group]:
    """The most frequent reasons first. A residual in a reason makes no reason of its own."""
    wordings: dict[tuple[str, str], Counter[str]] = {}
    for record in records:
        reason = record.reason or "no reason given"
        wordings.setdefault((record.attack, NUMBER.sub("#", reason)), Counter())[reason] += 1
    groups = [
        Group(attack, found.most_common(1)[0][0], found.total(), len(found)) for (attack, _), found in wordings.items()
    ]
    return sorted(groups, key=lambda group: -group.count)
