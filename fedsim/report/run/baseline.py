"""What can be had without any gradient: the mark that an attack must pass to have learned something."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from fedsim.report.run.read import RecordedRun
from fedsim.report.run.records import AttackRecord, ImageRecord
from fedsim.report.run.summary import mean_psnr
from fedsim.report.thresholds import EXACT, GUESS_MARGIN
from fedsim.report.wording import count, graded

GUESS, GREY = "the mean of public images", "mid-grey"
"""The guess, and mid-grey: what that is where there are no public pictures, and a mark beside it elsewhere."""

Key = tuple[str, int]


@dataclass(frozen=True)
class Baseline:
    """What was reached without the gradient on the pictures that an attack was scored on.

    Attributes:
        psnr: mean in dB over those of the pictures for which there is one.
        name: what reached it.
        gain: how many dB more the attack reaches on the same pictures, on average; above `EXACT` counts as that.
        pictures, of: how many those are, and how many the attack was scored on.
        capped: one of them lies above `EXACT`.
    """

    psnr: float
    name: str
    gain: float
    pictures: int
    of: int
    capped: bool = False


OWN = "attacks"
"""The package of fedsim's attacks."""


def needs_no_gradient(run: RecordedRun, attack: str) -> bool:
    """Whether the attack is a baseline, by its class or its settings: it never reads what was shared.

    A search at a random target, its labels given; the mean of a learned inversion's pictures; a generator's samples.
    """
    if any(record.baseline for record in run.attacks if record.attack == attack):
        return True
    settings = run.settings_of(attack)  # folders of earlier versions do not say, nor those without a line of it
    target = str(settings.get("_target_") or OWN).split(".")
    if target[0] != OWN:
        return False  # in a plug-in the same words may mean something else
    return settings.get("target") == "random" or settings.get("output") == "mean" or target[-1] == "GeneratorSamples"


def baselines(run: RecordedRun) -> frozenset[str]:
    """Names of a run's attacks that are baselines."""
    return frozenset(name for name in {record.attack for record in run.attacks} if needs_no_gradient(run, name))


def unrun(runs: Iterable[RecordedRun], asked: Collection[str] | None = None) -> bool:
    """Whether a baseline was asked for of which its run has no line: it is known by its settings alone.

    A run without any line leaves open what it would have shown, and nothing of what others did.

    Args:
        asked: names of attacks; None: each run's own.
    """
    return any(
        needs_no_gradient(run, name)
        for run in runs
        if run.attacks
        for name in set(run.names("attack")) - {record.attack for record in run.attacks}
        if asked is None or name in asked
    )


def reading(run: RecordedRun) -> RecordedRun:
    """The run with the attacks alone that read what was shared."""
    return _without(run, baselines(run))


def guessing(run: RecordedRun) -> RecordedRun:
    """The run with its baselines alone."""
    return _without(run, {record.attack for record in run.attacks} - baselines(run))


def _without(run: RecordedRun, names: frozenset[str] | set[str]) -> RecordedRun:
    kept = tuple(record for record in run.attacks if record.attack not in names)
    return replace(run, attacks=kept) if names else run


def best_baseline(attack: str, attacks: Sequence[AttackRecord], without: Sequence[AttackRecord]) -> Baseline | None:
    """The one of the guess, mid-grey and the baselines over which an attack gains least, picture by picture.

    Args:
        attacks: records, those of `attack` among them.
        without: records of the baselines on the same observations.

    Returns:
        None where nothing was scored on any picture of the attack.
    """
    own = {key: image for record in attacks if record.attack == attack for key, image in _pictures(record)}
    reached = {key: image.leaked for key, image in own.items() if image.leaked is not None}
    marks: dict[str, dict[Key, float | None]] = {}
    if not all(_guess_is_grey(own[key]) for key in reached):
        marks[GUESS] = {key: own[key].guess_psnr for key in reached}
    if all(own[key].grey_psnr is not None for key in reached):  # folders of earlier versions do not say
        marks[GREY] = {key: own[key].grey_psnr for key in reached}
    for record in without:
        marks.setdefault(record.attack, {}).update({key: image.leaked for key, image in _pictures(record)})
    found = []
    for name, values in marks.items():
        known = {key: value for key, value in values.items() if value is not None and key in reached}
        if known:
            gain = fmean(min(reached[key], EXACT) - min(value, EXACT) for key, value in known.items())
            capped = any(max(reached[key], value) > EXACT for key, value in known.items())
            found.append(Baseline(mean_psnr([*known.values()]) or 0.0, name, gain, len(known), len(reached), capped))
    return min(found, key=lambda one: one.gain, default=None)


def _guess_is_grey(image: ImageRecord) -> bool:
    guess, grey = image.guess_psnr, image.grey_psnr
    return guess is not None and grey is not None and math.isclose(guess, grey, rel_tol=1e-9)


def _pictures(record: AttackRecord) -> Iterator[tuple[Key, ImageRecord]]:
    if record.status == "done":
        for source, image in record.pictures.items():
            yield (record.observation, source), image


def against_guess(attack: str, baseline: Baseline, held: int) -> str:
    """How much more or less an attack reaches than the baseline, as a sentence.

    Args:
        held: images behind the updates on which the attack ended, of which it may have rebuilt some alone.
    """
    more = f"no more than that (within {GUESS_MARGIN:.0f} dB)"
    if abs(baseline.gain) > GUESS_MARGIN:
        more = f"{abs(baseline.gain):.1f} dB {'more' if baseline.gain > 0 else 'less'}"
    counted = f", images above {EXACT:.0f} dB counted as {EXACT:.0f}" if baseline.capped else ""
    scored = count(baseline.of, "image")
    on = "" if baseline.pictures == baseline.of else f" on {baseline.pictures:,} of its {scored}"
    if not on and baseline.of < held:
        on = f" on the {baseline.of:,} of {count(held, 'image')} that {attack} rebuilt"
    return (
        f"Without any gradient {baseline.name} reaches {graded(baseline.psnr)} on average{on}; {attack} reaches "
        f"{more}{' there' if on else ''}{counted}."
    )
