"""What withholding stops and costs, as tables and as one chart."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import makers
from experiments.studies.harness.tables import Value, markdown, number, write_csv
from experiments.studies.withholding.hitting_set import Names
from experiments.studies.withholding.search import Leak, SmallestSets, name_of
from fedsim.metrics.image import PSNR_CAP
from fedsim.report.draw.png import COLOURS, GRID, drawing, shorten
from fedsim.storage.durable import write_text

EXACT = 100.0
"""dB at which the bars end."""


@dataclass(frozen=True)
class WithheldLine:
    """A set that was withheld.

    Attributes:
        leaks: of every attack of the level.
        guesses: dB of each picture without a gradient.
        stops: no attack succeeds.
        share: of all parameters that is withheld.
    """

    variant: str
    level: str
    withheld: Names
    leaks: Sequence[Leak]
    guesses: Sequence[float]
    stops: bool
    smallest: bool
    share: float

    @property
    def best(self) -> list[float]:
        """dB of each picture by its best attack, or by the guess where that is better: anybody can submit it."""
        columns = zip(*(leak.psnrs for leak in self.leaks), self.guesses, strict=True)
        return [max(psnr for psnr in column if psnr is not None) for column in columns]

    @property
    def strongest(self) -> str:
        """The attack with the best mean, the guess in place of what it did not rebuild; or `guess` where that is it."""
        best = max(self.leaks, key=self.mean)
        return best.attack if self.mean(best) > fmean(self.guesses) else "guess"

    def mean(self, leak: Leak) -> float:
        """dB over all pictures, of which one that is not rebuilt counts as the guess."""
        pairs = zip(leak.psnrs, self.guesses, strict=True)
        return fmean(guess if psnr is None else psnr for psnr, guess in pairs)

    @property
    def certified(self) -> int:
        return max(leak.certified for leak in self.leaks)


@dataclass(frozen=True)
class Cost:
    """One training; accuracy None where it did not end well, for this reason."""

    withheld: Names
    mode: str
    seed: int
    accuracy: float | None
    reason: str


def never_applied(lines: Sequence[WithheldLine]) -> dict[str, str]:
    """The attacks that rebuilt nothing on any of these lines, and why; no verdict rests on them."""
    leaks = [leak for line in lines for leak in line.leaks]
    running = {leak.attack for leak in leaks if leak.applies}
    reasons: dict[str, list[str]] = {}
    for leak in leaks:
        if leak.attack not in running:
            reasons.setdefault(leak.attack, []).append(leak.reason or "it returned no picture")
    return {attack: "; or ".join(dict.fromkeys(sentences)) for attack, sentences in reasons.items()}


def write_tables(
    out: Path,
    lines: Sequence[WithheldLine],
    found: Mapping[tuple[str, str], SmallestSets],
    left_out: Mapping[tuple[str, str], str],
    costs: Sequence[Cost],
    entries: Sequence[Entry],
) -> None:
    """`withholding.md`, `withholding.csv` and `accuracy.csv`.

    Args:
        left_out: why a level was, by (variant, level).
        entries: of the ledger, which say what computed them.
    """
    text = [" · ".join(makers((entry["by"] for entry in entries), "attacks")) + "\n"]
    for (variant, level), one in found.items():
        chosen = [line for line in lines if (line.variant, line.level) == (variant, level)]
        text.append(f"## {variant}, {level}\n\n{_verdict(one, chosen)}\n")
        text.append(markdown(HEADER, [_cells(line) for line in chosen]))
    if left_out:
        text.append("## Left out\n")
        text.append("\n".join(f"- {variant}, {level}: {why}" for (variant, level), why in left_out.items()) + "\n")
    if costs:
        text.append("## Accuracy\n")
        cells = [[name_of(s), mode or "-", *_accuracy(group)] for (s, mode), group in _grouped(costs).items()]
        text.append(markdown(["withheld", "mode", "accuracy", "spread", "trainings"], cells))
    write_text(out / "withholding.md", "\n".join(text))
    names = ["variant", "level", "withheld", "groups", "share", "best_mean", "best_least", "best_most", "certified"]
    names += ["attack", "guess", "stops", "smallest"]
    write_csv(out / "withholding.csv", names, [_record(line) for line in lines])
    records: list[list[Value]] = [[name_of(c.withheld), c.mode, c.seed, c.accuracy, c.reason] for c in costs]
    write_csv(out / "accuracy.csv", ["withheld", "mode", "seed", "accuracy", "reason"], records)


HEADER = ["withheld", "parameters", "best PSNR", "least", "most", "certified", "by", "guess", "stops all"]


def write_chart(out: Path, lines: Sequence[WithheldLine], costs: Sequence[Cost]) -> None:
    """`withholding.png`: for each architecture, against its strongest attacker, the best PSNR by what is withheld.

    Not written where there is nothing to draw.
    """
    if not lines and not costs:
        return
    last = {line.variant: line.level for line in lines}
    panels = [[line for line in lines if (line.variant, line.level) == key] for key in last.items()]
    bars = sum(map(len, panels))
    groups = _grouped(costs)
    with drawing(out / "withholding.png", 8.0, 1.2 * len(panels) + 0.22 * (bars + len(groups)) + 0.8) as figure:
        heights = [len(panel) + 2 for panel in panels] + [len(groups) + 2] * bool(groups)
        axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axis, panel in zip(axes, panels, strict=False):
            for place, line in enumerate(reversed(panel)):
                best = [min(value, EXACT) for value in line.best]
                colour = COLOURS[2] if line.smallest else COLOURS[0] if line.stops else COLOURS[1]
                axis.barh(place, fmean(best), color=colour)
                axis.plot([min(best), max(best)], [place, place], color="#1a1f2b", linewidth=1)
            axis.axvline(fmean(panel[0].guesses), color="#565f6e", linestyle="--", linewidth=1)
            axis.set_yticks(range(len(panel)), [shorten(name_of(line.withheld), 60) for line in reversed(panel)])
            axis.set_xlim(0, EXACT)
            axis.set_xlabel(f"best PSNR in dB, {EXACT:g} and above: exact; dashed: guess without a gradient")
            axis.set_title(
                f"{panel[0].variant}, attacker: {panel[0].level} (green: smallest that stop all)", loc="left"
            )
        if groups:
            axis = axes[-1]
            for place, ((withheld, _), group) in enumerate(reversed(groups.items())):
                values = [100 * cost.accuracy for cost in group if cost.accuracy is not None]
                if values:
                    axis.barh(place, fmean(values), color=COLOURS[0] if withheld else COLOURS[6])
                    axis.plot([min(values), max(values)], [place, place], color="#1a1f2b", linewidth=1)
            labels = [shorten(f"{name_of(s)} {mode}".strip(), 60) for s, mode in reversed(groups)]
            axis.set_yticks(range(len(groups)), labels)
            axis.set_xlim(0, 100)
            axis.set_xlabel("accuracy in per cent after training with local steps")
        for axis in axes:
            axis.grid(axis="x", color=GRID)


def _verdict(found: SmallestSets, lines: Sequence[WithheldLine]) -> str:
    """What the attacks need, which of them never ran, and how each smallest set stops the others."""
    sentences = [f"- {attack} needs {name_of(need)}" for attack, needs in found.needs.items() for need in needs]
    silent = never_applied(lines)
    sentences += [f"- {attack} applied to nothing, and says nothing here: {why}" for attack, why in silent.items()]
    smallest = "; ".join(name_of(withheld) for withheld in found.smallest)
    all_others = "all others" if silent else "all"
    if not smallest:
        return "\n".join([*sentences, "", f"Nothing that leaves something to share stops {all_others}."])
    sentences += ["", f"Smallest sets that stop {all_others}: {smallest}.", ""]
    return "\n".join([*sentences, *(_how(line, silent) for line in lines if line.smallest)])


def _how(line: WithheldLine, silent: Collection[str]) -> str:
    """`- a + b: fc_bias rebuilds 9.8 dB; refused by april (…)`; a mean below the guess is given as it was reached."""
    leaks = [leak for leak in line.leaks if leak.attack not in silent]
    ran = [f"{leak.attack} reaches {line.mean(leak):.1f} dB" for leak in leaks if leak.applies]
    refused = [f"{leak.attack} ({leak.reason or 'no picture'})" for leak in leaks if not leak.applies]
    sentences = [", ".join(ran)] * bool(ran) + [f"refused by {', '.join(refused)}"] * bool(refused)
    return f"- {name_of(line.withheld)}: {'; '.join(sentences)}; a guess {fmean(line.guesses):.1f} dB"


def _cells(line: WithheldLine) -> list[str]:
    best = line.best
    verdict = "smallest" if line.smallest else "yes" if line.stops else ""
    numbers = [_decibels(fmean(best)), _decibels(min(best)), _decibels(max(best))]
    certified = f"{line.certified} of {len(best)}"
    guess = number(fmean(line.guesses), ".1f")
    return [name_of(line.withheld), f"{line.share:.1%}", *numbers, certified, line.strongest, guess, verdict]


def _decibels(psnr: float) -> str:
    return "exact" if psnr >= PSNR_CAP else f"{psnr:.1f}"


def _record(line: WithheldLine) -> list[Value]:
    best = line.best
    return [
        line.variant,
        line.level,
        name_of(line.withheld),
        len(line.withheld),
        line.share,
        fmean(best),
        min(best),
        max(best),
        line.certified,
        line.strongest,
        fmean(line.guesses),
        int(line.stops),
        int(line.smallest),
    ]


def _grouped(costs: Sequence[Cost]) -> dict[tuple[Names, str], list[Cost]]:
    groups: dict[tuple[Names, str], list[Cost]] = {}
    for cost in costs:
        groups.setdefault((cost.withheld, cost.mode), []).append(cost)
    return groups


def _accuracy(group: Sequence[Cost]) -> list[str]:
    values = [cost.accuracy for cost in group if cost.accuracy is not None]
    if not values:
        return [f"none: {group[0].reason}", "", "0"]
    spread = f"{stdev(values):.1%}" if len(values) > 1 else ""
    return [f"{fmean(values):.1%}", spread, str(len(values))]
