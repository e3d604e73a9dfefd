"""The fenced blocks of README.md, CONTRIBUTING.md and docs/, with what they say that they need."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

NEEDS = {
    "gpu": "a CUDA device",
    "cluster": "more than one machine",
    "processes": "a SuperLink and SuperNodes beside it",
    "DIR": "a folder of the reader's pictures",
    "RUN": "the folder of an earlier run",
    "minutes": "more than ten seconds",
    "example": "the example beside it: test_readme.py, test_plugin.py or experiments/test_own_defense.py runs it",
}
"""Why a block may be left alone; `<!-- needs: minutes, DIR -->` on the line before it."""

BLOCK = re.compile(
    r"^(?:<!-- needs: (?P<needs>.*?) -->\n)?(?P<indent>[ \t]*)```(?P<language>\w+)[^\n]*\n(?P<body>.*?)^(?P=indent)```",
    flags=re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """One fenced block, `number`-th of its language in the file."""

    path: str
    number: int
    language: str
    body: str
    needs: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.path}:{self.number}"

    def commands(self) -> list[list[str]]:
        """Its lines in words, comments left out and continued lines joined."""
        lines = self.body.replace("\\\n", " ").splitlines()
        return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def pages() -> list[Path]:
    """All Markdown that readers get."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(*languages: str) -> Iterator[Block]:
    """Every block in one of the languages, page by page."""
    for path in pages():
        found = [match for match in BLOCK.finditer(path.read_text(encoding="utf-8")) if match["language"] in languages]
        for number, match in enumerate(found):
            needs = tuple(word.strip() for word in (match["needs"] or "").split(",") if word.strip())
            yield Block(path.relative_to(ROOT).as_posix(), number, match["language"], match["body"], needs)


def without_bound(text: str) -> str:
    """A certificate promises a few dB more or less by the processor, far above what it needs."""
    (bound,) = re.findall(r"at least (\d+) dB", text)
    assert 100 < int(bound) < 130
    return text.replace(f"at least {bound} dB", "at least so many dB")
