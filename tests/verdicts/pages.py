"""What a page says, as a reader finds it: its verdict, its tiles, its tables, and every word on it."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from typing import Any

ALONE = frozenset({"meta", "link", "img", "br", "hr", "input", "path", "rect", "circle", "line", "polyline", "use"})
"""Elements without an end."""
UNREAD = frozenset({"style", "script", "pre"})
"""What is no sentence of the page: its looks, what it does, and the configuration as it was given."""
SPOKEN = ("title", "alt", "aria-label")
"""Attributes that a reader sees or hears."""


@dataclass
class Element:
    """A node of the page."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: "list[Element | str]" = field(default_factory=list)

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    def all(self, tag: str | None = None, *classes: str) -> "Iterator[Element]":
        """All elements below it with this tag and all of these classes, in order."""
        for child in self.children:
            if isinstance(child, Element):
                if tag in (None, child.tag) and set(classes) <= set(child.classes):
                    yield child
                yield from child.all(tag, *classes)

    def first(self, tag: str | None = None, *classes: str) -> "Element | None":
        return next(self.all(tag, *classes), None)

    @property
    def text(self) -> str:
        """Its words, in one line."""
        return " ".join(" ".join(self._words()).split())

    def _words(self) -> Iterator[str]:
        if self.tag in UNREAD:
            return
        yield from (self.attributes[name] for name in SPOKEN if name in self.attributes)
        for child in self.children:
            if isinstance(child, str):
                yield child
            else:
                yield from child._words()


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("root")
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        if tag not in ALONE:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        places = [place for place, element in enumerate(self._open) if element.tag == tag]
        if places and places[-1]:
            del self._open[places[-1] :]

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)


def parse(html: str) -> Element:
    builder = _Builder()
    builder.feed(html)
    builder.close()
    return builder.root


@dataclass(frozen=True)
class Said:
    """What was said of one case.

    Attributes:
        page: `run`, `comparison` or `matrix`.
        levels: of its verdicts, in order, by the name of the defense (empty for a run).
        tags: beside them.
        sentences: what a reader reads first, one for each verdict.
        asides: a comparison with undefended runs, and what few images leave open.
        details: the lines below them.
        cards: tiles of a run, by name: the value and the note together.
        tree: the whole page.
        terminal: what the command printed, without the names of files.
        summary: `summary.json`, `matrix.json` of a matrix.
        others: (level, images counted) that pages of their own give to what this page judges too.
    """

    page: str
    levels: dict[str, str]
    tags: tuple[str, ...]
    sentences: tuple[str, ...]
    asides: tuple[str, ...]
    details: tuple[str, ...]
    cards: dict[str, str]
    tree: Element
    terminal: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    others: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Every word on the page."""
        return self.tree.text

    @property
    def verdict(self) -> str:
        """All that stands in the verdicts."""
        sections = [section.text for section in self.tree.all("section", "verdict")]
        return " ".join(sections or self.sentences)

    def rows(self, header: str) -> list[dict[str, str]]:
        """The lines of the first table that has this column, by the words of its columns."""
        for table in self.tree.all("table"):
            heads = [head.text for head in table.all("th") if head.attributes.get("scope") == "col"]
            if header in heads:
                lines = [[cell.text for cell in row.children if isinstance(cell, Element)] for row in table.all("tr")]
                return [dict(zip(heads, line, strict=False)) for line in lines[1:]]
        return []


def read_page(page: str, html: str, terminal: str, summary: dict[str, Any]) -> Said:
    """The parts of a run's page or of a comparison's."""
    tree = parse(html)
    sections = list(tree.all("section", "verdict"))
    names = [heading.text if (heading := section.first("h3")) else "" for section in sections]
    return Said(
        page=page,
        levels={name: _level(section) for name, section in zip(names, sections, strict=True)},
        tags=tuple(_texts(sections, "p", "tag")),
        sentences=tuple(_texts(sections, "p", "sentence")),
        asides=(*_texts(sections, "p", "against"), *_texts(sections, "li", "caution")),
        details=tuple(item.text for section in sections for item in section.all("li")),
        cards=dict(_cards(tree)),
        tree=tree,
        terminal=terminal,
        summary=summary,
    )


def read_matrix_page(html: str, terminal: str, summary: dict[str, Any], others: dict[str, tuple[str, str]]) -> Said:
    """The parts of a matrix's page: its paragraphs, and each row with its level."""
    tree = parse(html)
    header = tree.first("header") or tree
    sentences = tuple(paragraph.text for paragraph in header.all("p", "lead"))
    page_said = Said("matrix", {}, (), sentences, (), (), {}, tree, terminal, summary, others)
    levels = {row["Defense"]: row["Level"] for row in page_said.rows("Level")}
    return replace(page_said, levels=levels)


def _level(section: Element) -> str:
    return " ".join(name for name in section.classes if name != "verdict").replace("-", " ")


def _texts(sections: list[Element], tag: str, name: str) -> Iterator[str]:
    for section in sections:
        yield from (element.text for element in section.all(tag, name))


def _cards(tree: Element) -> Iterator[tuple[str, str]]:
    for card in tree.all("div", "card"):
        name, *rest = (child.text for child in card.children if isinstance(child, Element))
        yield name, " · ".join(rest)
