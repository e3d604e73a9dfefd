"""What measures say, in sentences, and what few test images leave open."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

from fedsim.metrics.chance import accuracy_reach, chance_between
from fedsim.report.level_wording import few_seeds
from fedsim.report.measures.records import Record, at, grouped, over_runs, point, ratios
from fedsim.report.thresholds import FEW_TEST_IMAGES
from fedsim.report.wording import count, listed, percent

NAMED = 4
"""Models that a sentence names; of more it tells the least and the most."""

Groups = Mapping[str, Sequence[Record]]
Values = dict[str, list[float]]
"""Of each model that was measured, one for each run."""


def findings(measures: Record) -> list[str]:
    """What was found, the page's own question first; never empty."""
    groups = grouped(measures["runs"])
    return list(filter(None, (_shuffled(groups), _places(groups), _whole(groups), _corrupted(groups))))


def cautions(measures: Record) -> list[str]:
    """What models of one class for all say nothing of, and how far chance moves a share of few test images."""
    sentences, constant = [], []
    for name, runs in grouped(measures["runs"]).items():
        if number := sum(at(run, "classes_named") == 1 for run in runs):
            constant.append(name if number == len(runs) else f"{name} (in {number} of {len(runs)} runs)")
    if constant:
        who = f"{listed(constant)} {'names' if len(constant) == 1 else 'name'}"
        sentences.append(f"{who} one class for all test images: that these keep it says nothing of the patches.")
    for what, keys in (("test image", ("pictures",)), ("corrupted test image", ("corruptions", "pictures"))):
        least = min((number for run in measures["runs"] if (number := at(run, *keys))), default=FEW_TEST_IMAGES)
        if least < FEW_TEST_IMAGES:
            reach = 100 * (accuracy_reach([0.5], least) or 0.0)
            sentences.append(f"Only {count(least, what)}: chance moves a share of them by up to {reach:.0f} points.")
    return sentences


def _shuffled(groups: Groups) -> str:
    most = max(ratios([run for runs in groups.values() for run in runs]), default=0.0)
    found = _values(groups, lambda run: point(run, most).get("consistency"))
    if not found or not most:
        return ""
    kept = f"{_range(found, percent)} of the test images keep their class"
    return f"{kept} when patches are shuffled (ratio {most:g}){_apart(groups, found)}."


def _places(groups: Groups) -> str:
    found = _values(groups, lambda run: at(run, "position", "mae_2d"))
    if not found:
        return ""
    guesses = list(chain(*_values(groups, lambda run: at(run, "position", "chance_2d")).values()))
    guess = " to ".join(f"{one:.2f}" for one in sorted({min(guesses), max(guesses)}))
    off = _range(found, "{:.2f}".format)
    return f"Told by its position embedding, a patch's row and column are off by {off}; guessed, by {guess} patches."


def _whole(groups: Groups) -> str:
    found = _values(groups, lambda run: run["top1"])
    return f"Accuracy on whole images: {_range(found, percent)}{_apart(groups, found)}."


def _corrupted(groups: Groups) -> str:
    found = _values(groups, lambda run: at(run, "corruptions", "mean_error"))
    return f"Errors on corrupted images: {_range(found, percent)}." if found else ""


def _values(groups: Groups, read: Callable[[Record], Any]) -> Values:
    found = {name: [spread.mean for run in runs if (spread := over_runs([read(run)]))] for name, runs in groups.items()}
    return {name: values for name, values in found.items() if values}


def _range(found: Values, tell: Callable[[float], str]) -> str:
    """`73.0 % (baseline) and 99.0 % (mjp)`."""
    words = {name: f"{tell(fmean(values))} ({name})" for name, values in found.items()}
    if len(found) <= NAMED:
        return listed(list(words.values()))
    ordered = sorted(found, key=lambda name: fmean(found[name]))
    return f"{words[ordered[0]]} to {words[ordered[-1]]}"


def _apart(groups: Groups, found: Values) -> str:
    """Where models differ by no more than chance explains; empty of a single one."""
    if len(found) < 2:
        return ""
    images = min(run["pictures"] for runs in groups.values() for run in runs)
    least, most = min(found.values(), key=fmean), max(found.values(), key=fmean)
    within = chance_between(accuracy_reach(least, images), accuracy_reach(most, images))
    explained = within is not None and fmean(most) - fmean(least) <= within
    if not explained:
        return ""
    # Models measured once are themselves what is asked about; those of several runs stand for a way of training.
    few = few_seeds(least, most) if max(len(least), len(most)) > 1 else ""
    return f", no further apart than chance explains on {count(images, 'image')}{f': {few}' if few else ''}"
