"""What mkdocstrings asks of docstrings: `a, b: text` is one entry for each name, so that each has its type."""

import re
from typing import Any

import griffe

SEVERAL = re.compile(r"^( +)(\w+(?:, \w+)+): (.*(?:\n\1 +.*)*)", re.MULTILINE)


class OneEntryEach(griffe.Extension):
    """Rewrites what griffe has read, before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Griffe calls it for each module, class and function."""
        if obj.docstring is not None:
            obj.docstring.value = one_entry_each(obj.docstring.value)


def one_entry_each(text: str) -> str:
    """The same text for each of the names."""

    def repeat(match: re.Match[str]) -> str:
        indent, names, said = match.groups()
        return "\n".join(f"{indent}{name}: {said}" for name in names.split(", "))

    return SEVERAL.sub(repeat, text)
