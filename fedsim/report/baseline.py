"""What can be had without any gradient: the mark that an attack must pass to have learned something."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedsim.report.read import RunFolder
from fedsim.report.summary import AttackSummary, mean
from fedsim.report.wording import decibels

GUESS_MARGIN = 1.0
"""dB over the guess from which an attack counts as having learned something."""

GUESS = "the mean of public pictures"


@dataclass(frozen=True)
class Baseline:
    """The best that was reached without the gradient: its mean PSNR in dB, and what reached it."""

    psnr: float
    name: str


def needs_no_gradient(run: RunFolder, attack: str) -> bool:
    """Whether the attack was configured as a baseline: it never reads what was shared.

    A search at a random target, the mean of a learned inversion's pictures, a generator's samples.
    """
    settings = run.setting("attack")
    settings = settings.get(attack) if isinstance(settings, Mapping) else None
    if not isinstance(settings, Mapping):
        return False
    target = str(settings.get("_target_") or "").rsplit(".", 1)[-1]
    return settings.get("target") == "random" or settings.get("output") == "mean" or target == "GeneratorSamples"


def split(run: RunFolder, rows: list[AttackSummary]) -> tuple[list[AttackSummary], list[AttackSummary]]:
    """(attacks, baselines)."""
    known = {row.attack: needs_no_gradient(run, row.attack) for row in rows}
    return [row for row in rows if not known[row.attack]], [row for row in rows if known[row.attack]]


def reading(run: RunFolder) -> RunFolder:
    """The run with the attacks alone that read what was shared."""
    names = {record.attack for record in run.attacks}
    kept = {name for name in names if not needs_no_gradient(run, name)}
    return run if kept == names else replace(run, attacks=tuple(one for one in run.attacks if one.attack in kept))


def best_baseline(run: RunFolder, rows: list[AttackSummary]) -> Baseline | None:
    """The highest of the guess and of the attacks that need no gradient; None where neither was scored.

    Args:
        rows: the run's attacks.
    """
    found = [Baseline(row.mean_leaked, row.attack) for row in split(run, rows)[1] if row.mean_leaked is not None]
    if (guess := guessed(run)) is not None:
        found.append(Baseline(guess, GUESS))
    return max(found, key=lambda one: one.psnr, default=None)


def guessed(run: RunFolder) -> float | None:
    """Mean PSNR in dB of the guess over the observed pictures, each counted once."""
    values: dict[tuple[str, int], float] = {}
    for record in run.attacks:
        for index, image in enumerate(record.images):
            if image.guess_psnr is not None:
                values[record.observation, index] = image.guess_psnr
    return mean(list(values.values()))


def against_guess(attack: str, psnr: float, baseline: Baseline) -> str:
    """How much more an attack reaches than the baseline, as a sentence."""
    gain = psnr - baseline.psnr
    more = f"{gain:.1f} dB more" if gain > GUESS_MARGIN else f"no more than that (within {GUESS_MARGIN:.0f} dB)"
    return (
        f"Without any gradient {baseline.name} reaches {decibels(baseline.psnr)} on average; {attack} reaches {more}."
    )
