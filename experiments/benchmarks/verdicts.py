"""Can a report be made to lie? Run folders, audits and matrices built to that end, and what each page says of them.

python -m experiments.benchmarks.verdicts --out DIR                       all cases, a minute on 2 cores
python -m experiments.benchmarks.verdicts --out DIR --only guess noise    those whose names hold one of these words
python -m experiments.benchmarks.verdicts --out DIR --page FILE           the table as a page of the documentation

Ends with 1 where something that must hold does not.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from experiments.benchmarks.verdict_cases import (
    audit_cases,
    certificate_cases,
    defense_cases,
    guess_cases,
    matrix_cases,
    record_cases,
    seen_cases,
)
from experiments.benchmarks.verdict_cases.case import Case
from experiments.benchmarks.verdict_cases.pages import Said

MODULES = (guess_cases, certificate_cases, seen_cases, record_cases, defense_cases, matrix_cases)
SYNTHETIC: dict[str, tuple[Case, ...]] = {module.__name__.rpartition(".")[2]: module.CASES for module in MODULES}
REAL = audit_cases.CASES
HEADS = ("page", "case", "what a reader might believe", "it says", "terminal", "`summary.json`", "holds")


@dataclass(frozen=True)
class Answer:
    """A case, what was said, and what of it must not be so."""

    case: Case
    said: Said
    wrong: list[str]

    @property
    def cells(self) -> tuple[str, ...]:
        said = self.said
        told = [f"**{found}** {name}".strip() for name, found in said.levels.items()]
        words = " ".join([*said.sentences, *said.asides])
        first = said.terminal.strip()
        same = bool(said.sentences) and all(sentence in first for sentence in said.sentences)
        printed = "as the page" if same else first or "–"
        holds = "yes" if not self.wrong else f"NO: {'; '.join(self.wrong)}"
        return (said.page, self.case.name, self.case.lie, f"{', '.join(told)}: {words}", printed, stated(said), holds)


def answer(case: Case, folder: Path) -> Answer:
    """Build it in this folder, which must be empty, and hold its page against what is expected."""
    folder.mkdir(parents=True)
    said = case.make(folder)
    return Answer(case, said, case.wrong(said))


def stated(said: Said) -> str:
    """What `summary.json` says of the verdict."""
    found = said.summary.get("verdict") if said.page == "run" else None
    if isinstance(found, dict):
        return ", ".join(f"{name} {value}" for name, value in found.items() if isinstance(value, int | str | float))
    return "–" if found is None else str(found)


def to_markdown(answers: Iterable[Answer]) -> str:
    lines = [f"| {' | '.join(HEADS)} |", f"|{' --- |' * len(HEADS)}"]
    lines += [f"| {' | '.join(_cell(text) for text in one.cells)} |" for one in answers]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """A cell is one line, and what is a sign of Markdown or of HTML elsewhere is text in it."""
    return escape(" ".join(text.split()), quote=False).replace("|", "\\|")


def to_page(answers: Sequence[Answer]) -> str:
    held = sum(not one.wrong for one in answers)
    return f"""# Can a report be made to lie?

Each line is a run folder, an audit, a comparison or a matrix that was built to make one sentence untrue, and what is \
said of it now:

<!-- needs: minutes -->
```bash
python -m experiments.benchmarks.verdicts --out DIR
```

{held} of {len(answers)} cases hold. Besides what a case expects, each is searched for “safe”, “proven” and \
“protects”, which no page, terminal line or summary says, and a matrix is held against the pages of its own runs.

{to_markdown(answers)}"""


def chosen(words: Sequence[str]) -> list[Case]:
    cases = [case for group in SYNTHETIC.values() for case in group] + list(REAL)
    return [case for case in cases if not words or any(word in case.name for word in words)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="an empty or new folder for what is built")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="cases whose names hold one of these")
    parser.add_argument("--page", type=Path, help="write the table as a page of the documentation")
    arguments = parser.parse_args()
    answers = []
    for number, case in enumerate(chosen(arguments.only)):
        one = answer(case, arguments.out / f"{number:03d}")
        answers.append(one)
        print(f"{'ok' if not one.wrong else 'NO':3} {one.said.page:10} {case.name}: {'; '.join(one.wrong) or 'holds'}")
    (arguments.out / "verdicts.md").write_text(to_markdown(answers), encoding="utf-8")
    if arguments.page is not None:
        arguments.page.write_text(to_page(answers), encoding="utf-8")
    held = sum(not one.wrong for one in answers)
    print(f"{held} of {len(answers)} hold")
    sys.exit(0 if answers and held == len(answers) else 1)


if __name__ == "__main__":
    main()
