"""What must hold of what is said, whatever its wording."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.verdicts.pages import Said

LEVELS = ("broken", "proven", "open", "not tested")
FORBIDDEN = re.compile(r"\b(safe|safely|safest|protects|protected)\b", re.IGNORECASE)
"""A reader takes each of them for a promise."""
PROVEN, NUMBERS, NEAR = re.compile(r"\bproven\b", re.IGNORECASE), re.compile("probability .*0\\.001.* at most "), 400
"""A promise, too, but for a theorem whose numbers stand so many characters around the word."""
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Expectation:
    """In words, and whether it holds."""

    words: str
    holds: Callable[[Said], bool]


def level(*levels: str) -> Expectation:
    """Every verdict of the page has one of these levels."""
    return Expectation(
        f"level: {' or '.join(levels)}",
        lambda said: bool(said.levels) and all(found in levels for found in said.levels.values()),
    )


def level_of(name: str, *levels: str) -> Expectation:
    """The verdict on the defense whose name begins so."""
    return Expectation(
        f"{name}: {' or '.join(levels)}",
        lambda said: [found in levels for key, found in said.levels.items() if key.startswith(name)] == [True],
    )


def says(pattern: str, where: str = "verdict") -> Expectation:
    """A regular expression that the verdict holds; `where` names another part of what was said."""
    return Expectation(f"{where} says /{pattern}/", lambda said: _found(pattern, said, where))


def never(pattern: str, where: str = "verdict") -> Expectation:
    return Expectation(f"{where} never says /{pattern}/", lambda said: not _found(pattern, said, where))


def counts(number: int, of: int, where: str = "verdict") -> Expectation:
    """`3 of 20`, in digits."""
    return says(rf"\b{number:,} of (the |all |its )?{of:,}\b", where)


def card(name: str, pattern: str) -> Expectation:
    """A tile says so."""
    return Expectation(
        f"tile {name!r} says /{pattern}/",
        lambda said: any(key == name and re.search(pattern, text) is not None for key, text in said.cards.items()),
    )


def no_element(tag: str, attribute: str) -> Expectation:
    """Nothing on the page is an element of this kind: what was given as a name is text."""
    return Expectation(
        f"no <{tag} {attribute}>", lambda said: not any(attribute in one.attributes for one in said.tree.all(tag))
    )


def column(header: str, pattern: str) -> Expectation:
    """Every line of the table with this column has what the pattern says in it."""

    def holds(said: Said) -> bool:
        rows = said.rows(header)
        return bool(rows) and all(re.search(pattern, row.get(header, "")) is not None for row in rows)

    return Expectation(f"column {header!r} says /{pattern}/", holds)


def row(name: str, header: str, pattern: str) -> Expectation:
    """The line that begins so, or whose defense does, has it in this column of the table that has it."""

    def holds(said: Said) -> bool:
        lines = said.rows(header)
        found = [one for one in lines if (one.get("Defense") or next(iter(one.values()), "")).startswith(name)]
        return bool(found) and all(re.search(pattern, line.get(header, "")) is not None for line in found)

    return Expectation(f"{name}, column {header!r}: /{pattern}/", holds)


def colour(name: str, pattern: str) -> Expectation:
    """Each square of the heat map's lines that begin so is of a class with such a name."""

    def holds(said: Said) -> bool:
        lines = [line for heat in said.tree.all("div", "heat") for line in heat.all("tr")]
        named = [line for line in lines if (head := line.first("th")) is not None and head.text.startswith(name)]
        classes = [one for line in named for cell in line.all("td") for one in cell.classes if one.startswith("level-")]
        return bool(classes) and all(re.search(pattern, one) is not None for one in classes)

    return Expectation(f"{name}, squares: /{pattern}/", holds)


def least_below_mean() -> Expectation:
    """In the table of attacks no least value lies above its mean: those of one kind stand in the same place."""

    def holds(said: Said) -> bool:
        rows = said.rows("Done")
        for line in rows:
            means = next((text for head, text in line.items() if head.startswith("Mean PSNR")), "")
            least = next((text for head, text in line.items() if head.startswith("Least PSNR")), "")
            both = [[float(value) for value in NUMBER.findall(text)] for text in (means, least)]
            if any(low > mean for mean, low in zip(*both, strict=False)):
                return False
        return bool(rows)

    return Expectation("no least PSNR above its mean", holds)


def house_rules(said: Said) -> list[str]:
    """What holds of every page, terminal line and summary; what does not, in words."""
    wrong = []
    for where, text in (("page", said.text), ("terminal", said.terminal), ("summary", json.dumps(said.summary))):
        if (word := FORBIDDEN.search(text)) is not None:
            around = text[max(0, word.start() - 40) : word.end() + 40]
            wrong.append(f"the {where} says {word.group()!r}: …{around}…")
        for word in PROVEN.finditer(text):
            around = text[max(0, word.start() - NEAR) : word.end() + NEAR].replace("\n", " ")
            if not NUMBERS.search(around):
                wrong.append(f"the {where} says {word.group()!r} without the numbers: …{around}…")
    levels = (*LEVELS, "–") if said.page == "matrix" else LEVELS
    wrong += [f"level {found!r} is none" for found in said.levels.values() if found not in levels]
    if any(re.search("leaks? less", tag, re.IGNORECASE) for tag in said.tags):
        wrong.append("“leaks less” is a tag, which it never is")
    counted = {line["Defense"]: line["Images"] for line in said.rows("Images")} if said.others else {}
    for name, (found, images) in said.others.items():
        if said.levels.get(name) != found:
            wrong.append(f"{name} is {said.levels.get(name)!r} here and {found!r} on the page of its own run")
        if not counted.get(name, "").startswith(images):
            wrong.append(f"{name} has {counted.get(name)!r} here and {images!r} on the page of its own run")
    if said.page == "run" and (stated := said.summary.get("verdict")) is not None:
        named = stated.get("level") if isinstance(stated, dict) else stated
        if named not in said.levels.values():
            wrong.append(f"summary.json has {named!r}, the page {said.levels}")
    return wrong


def _found(pattern: str, said: Said, where: str) -> bool:
    text = json.dumps(said.summary) if where == "summary" else getattr(said, where)
    return re.search(pattern, text if isinstance(text, str) else " ".join(text), re.IGNORECASE) is not None
