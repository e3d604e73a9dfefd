"""All cases, each held against what its page may say, and the tables of what was said."""

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from experiments.studies.harness.study import code_and_machine
from tests.verdicts.case import Case
from tests.verdicts.cases import audits, certificates, defenses, guesses, matrices, records, seen
from tests.verdicts.pages import Said

MODULES = (guesses, certificates, seen, records, defenses, matrices)
SYNTHETIC: dict[str, tuple[Case, ...]] = {module.__name__.rpartition(".")[2]: module.CASES for module in MODULES}
REAL = audits.CASES
HEADS = ("page", "constructed", "a careless page would say", "though", "it says", "terminal", "`summary.json`", "holds")
SHORT = ("constructed", "a careless page would say", "though", "ours says")
TURNS = re.compile(r": |, where |, which ")
"""Between what would be believed wrongly and what is so."""
PAGES = {"run": "Runs and audits", "comparison": "Comparisons", "matrix": "Matrices"}
LONGEST = 400
"""Characters of what a page says in the page of the documentation."""


@dataclass(frozen=True)
class CaseAnswer:
    """A case, what was said, and what of it must not be so."""

    case: Case
    said: Said
    wrong: list[str]

    @property
    def cells(self) -> tuple[str, ...]:
        said = self.said
        parts = [f"**{found}** {name}".strip() for name, found in said.levels.items()]
        words = " ".join([*said.sentences, *said.asides])
        first = said.terminal.strip()
        printed = "as the page" if self.printed else first or "–"
        holds = "yes" if not self.wrong else f"NO: {'; '.join(self.wrong)}"
        says = f"{', '.join(parts)}: {words}"
        return (said.page, self.case.name, *believed(self.case.lie), says, printed, stated(said), holds)

    @property
    def printed(self) -> bool:
        """The terminal says what the page says, word for word."""
        said = self.said
        return bool(said.sentences) and all(sentence in said.terminal for sentence in said.sentences)

    @property
    def short(self) -> tuple[str, ...]:
        """The case, what is believed wrongly, and what is said in its place; of a matrix each row with its counts."""
        said, parts = self.said, []
        if said.page == "matrix":
            counted = {line["Defense"]: line["Images"] for line in said.rows("Images")}
            parts = [f"{name} **{found}**, {counted.get(name, '')}" for name, found in said.levels.items()]
        else:
            parts = [f"**{found}** {words}" for found, words in zip(said.levels.values(), said.sentences, strict=True)]
            parts += [text.text for text in said.tree.all("p", "against")]
        words = "; ".join(parts)
        cut = words if len(words) <= LONGEST else f"{words[:LONGEST].rpartition(' ')[0]} …"
        return (
            self.case.name,
            *believed(self.case.lie),
            cut + ("" if not self.wrong else f" NO: {'; '.join(self.wrong)}"),
        )


def believed(lie: str) -> tuple[str, str]:
    """What a careless page would say, and what is so; nothing where the former stands for itself."""
    first, *rest = TURNS.split(lie, maxsplit=1)
    return first, "".join(rest)


def answer(case: Case, folder: Path) -> CaseAnswer:
    """Build it in this folder, which must be empty, and hold its page against what is expected."""
    folder.mkdir(parents=True)
    said = case.make(folder)
    return CaseAnswer(case, said, case.wrong(said))


def stated(said: Said) -> str:
    """What `summary.json` says of the verdict."""
    found = said.summary.get("verdict") if said.page == "run" else None
    if isinstance(found, dict):
        return ", ".join(f"{name} {value}" for name, value in found.items() if isinstance(value, int | str | float))
    return "–" if found is None else str(found)


def to_markdown(answers: Iterable[CaseAnswer]) -> str:
    return _table(HEADS, (one.cells for one in answers))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    lines += [f"| {' | '.join(_cell(text) for text in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """A cell is one line, and what is a sign of Markdown or of HTML elsewhere is text in it."""
    return escape(" ".join(text.split()), quote=False).replace("|", "\\|")


def to_page(answers: Sequence[CaseAnswer]) -> str:
    """Short: the first words that a page says, and the rest in the table that `--out` holds."""
    held = sum(not one.wrong for one in answers)
    runs = [one for one in answers if one.said.page == "run" and one.said.terminal]
    unlike = [one.case.name for one in runs if not one.printed]
    tables = []
    for page, title in PAGES.items():
        rows = [one.short for one in answers if one.said.page == page]
        tables += [f"## {title}\n\n{_table(SHORT, rows)}"] if rows else []
    return f"""# Can a report be made to lie?

Each line is a run, an audit, a comparison or a matrix constructed so that a careless page would say something \
untrue, and the first words of its page. Everything that the page, the terminal and `summary.json` say is in the table \
that this command writes:

<!-- needs: minutes -->
```bash
python -m tests.verdicts --out DIR
```

{held} of {len(answers)} cases hold. No page, terminal line or summary may say “safe” or “protects”, nor “proven” \
without the theorem's numbers beside it. A matrix must agree with the pages of its own runs, and `summary.json` with \
its page. The terminal repeats the sentence of the page word for word in {len(runs) - len(unlike)} of the {len(runs)} \
runs that print one{_but(unlike)}. Whoever wrote fedsim wrote the cases: they are the lies that were thought of, and \
no sample of those that there are. What the levels mean: [the report](../report.md#levels).

{datetime.now(UTC).date().isoformat()} · {code_and_machine("cpu")}

{chr(10).join(tables)}"""


def _but(names: Sequence[str]) -> str:
    named = " and ".join(f"*{name}*" for name in names)
    return f", but not in {named}: of a run that stops it says that" if names else ""


def chosen(words: Sequence[str]) -> list[Case]:
    cases = [case for group in SYNTHETIC.values() for case in group] + list(REAL)
    return [case for case in cases if not words or any(word in case.name for word in words)]


def run(arguments: argparse.Namespace) -> None:
    """Exits with 1 where something that must hold does not."""
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
