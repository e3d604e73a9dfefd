"""The fault table: rows as they come out, as Markdown and as CSV."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

COLUMNS = ("fault", "injected", "expected", "happened", "seconds", "ok")


@dataclass
class Finding:
    """What is found out about one fault, in the order in which it is.

    Attributes:
        said: what happened.
        wrong: what should not have.
    """

    said: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.said.append(text)

    def check(self, right: bool, said: str, otherwise: str) -> None:
        """`said` is what happened where it is right, `otherwise` where it is not; an empty `said` is left out."""
        if not right:
            self.wrong.append(otherwise)
        elif said:
            self.said.append(said)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    fault: str
    injected: str
    expected: str
    finding: Finding
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.finding.wrong

    @property
    def cells(self) -> tuple[str, ...]:
        happened = "; ".join([*self.finding.said, *(f"WRONG: {text}" for text in self.finding.wrong)])
        ok = "ok" if self.ok else "not ok"
        return (self.fault, self.injected, self.expected, happened, f"{self.seconds:.0f}", ok)


def to_markdown(rows: Sequence[Row]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(_cell(text) for text in row.cells)} |" for row in rows]
    return "\n".join(lines) + "\n"


def to_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    writer.writerows(row.cells for row in rows)
    return text.getvalue()


def _cell(text: str) -> str:
    """A cell is one line, and a pipe in it is none of the table's."""
    return " ".join(text.split()).replace("|", "\\|")
