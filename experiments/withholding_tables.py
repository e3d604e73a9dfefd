"""What withholding stops and costs, as tables and as one chart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev

from experiments.hitting_set import Names
from experiments.reproduce.ledger import write_text
from experiments.reproduce.tables import Value, markdown, number, write_csv
from experiments.withholding_search import Found, Leak, name_of
from fedsim.metrics.image import PSNR_CAP
from fedsim.report.png import COLOURS, GRID, drawing, shorten

EXACT = 100.0
"""dB at which the bars end."""


@dataclass(frozen=True)
class Line:
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
        """dB of each picture by its best attack; of one that nothing rebuilt, the guess."""
        columns = zip(*(leak.psnrs for leak in self.leaks), strict=True)
        known = ([psnr for psnr in column if psnr is not None] for column in columns)
        return [max(found) if found else guess for found, guess in zip(known, self.guesses, strict=True)]

    @property
    def strongest(self) -> str:
        """The attack with the best mean; nothing where all refused."""
        rebuilt = [leak for leak in self.leaks if any(psnr is not None for psnr in leak.psnrs)]
        if not rebuilt:
            return ""
        return max(rebuilt, key=lambda leak: fmean(psnr or 0.0 for psnr in leak.psnrs)).attack

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


def write_tables(
    out: Path, lines: Sequence[Line], found: Mapping[tuple[str, str], Found], costs: Sequence[Cost]
) -> None:
    """`withholding.md`, `withholding.csv` and `accuracy.csv`."""
    text = []
    for (variant, level), one in found.items():
        text.append(f"## {variant}, {level}\n\n{_verdict(one)}\n")
        chosen = [line for line in lines if (line.variant, line.level) == (variant, level)]
        text.append(markdown(HEADER, [_cells(line) for line in chosen]))
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


def write_chart(out: Path, lines: Sequence[Line], costs: Sequence[Cost]) -> None:
    """`withholding.png`: for each architecture, against its strongest attacker, the best PSNR by what is withheld."""
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


def _verdict(found: Found) -> str:
    lines = [f"- {attack} needs {name_of(need)}" for attack, needs in found.needs.items() for need in needs]
    smallest = "; ".join(name_of(withheld) for withheld in found.smallest)
    end = (
        f"Smallest sets that stop all: {smallest}." if smallest else "Nothing that leaves something to share stops all."
    )
    return "\n".join([*lines, "", end])


def _cells(line: Line) -> list[str]:
    best = line.best
    verdict = "smallest" if line.smallest else "yes" if line.stops else ""
    numbers = [_decibels(fmean(best)), _decibels(min(best)), _decibels(max(best))]
    certified = f"{line.certified} of {len(best)}"
    guess = number(fmean(line.guesses), ".1f")
    return [name_of(line.withheld), f"{line.share:.1%}", *numbers, certified, line.strongest, guess, verdict]


def _decibels(psnr: float) -> str:
    return "exact" if psnr >= PSNR_CAP else f"{psnr:.1f}"


def _record(line: Line) -> list[Value]:
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
    spread = f"{pstdev(values):.1%}" if len(values) > 1 else ""
    return [f"{fmean(values):.1%}", spread, str(len(values))]
