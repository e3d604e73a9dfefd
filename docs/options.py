"""What MkDocs asks while it builds: docs/options.md gets its tables from the comments of conf/.

`{{ options GROUP }}` is a table of the group's options; `{{ settings FILE }}` one of the settings that conf/FILE.yaml
itself gives, where FILE may be GROUP/OPTION.
"""

import html
import re
from pathlib import Path
from typing import Any

CONF = Path(__file__).parents[1] / "conf"
LINE = re.compile(r"(?P<indent> *)(?P<key>[\w-]+):(?P<value>.*?)(?:\s+#\s*(?P<remark>.*))?$")
NO_SETTINGS = ("defaults", "hydra")
OWN_PAGE = ("matrix.defenses", "matrix.attacks")
"""Tables of a command that are too long for one: its own page tells of them."""


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Fills `{{ options … }}` and `{{ settings … }}`."""
    markdown = re.sub(r"\{\{ options (\w+) \}\}", lambda match: options(match[1]), markdown)
    return re.sub(r"\{\{ settings ([\w/]+) \}\}", lambda match: settings(match[1]), markdown)


def options(group: str) -> str:
    """A row for each file of conf/GROUP, with the sentence that the file begins with.

    Raises:
        ValueError: a file without one.
    """
    rows = []
    for path in sorted((CONF / group).glob("*.yaml")):
        comments = [line[1:].strip() for line in _text(path).splitlines() if line.startswith("# ")]
        told = [line for line in comments if not line.startswith("@package")]
        if not told:
            raise ValueError(f"{path} does not say what it is")
        rows.append(f"| `{path.stem}` | {_cell(told[0])} |")
    return "\n".join([f"| `{group}=` | |", "| --- | --- |", *rows])


def settings(name: str) -> str:
    """A row for each key that conf/NAME.yaml gives a value or explains, by its dotted path."""
    rows = [f"| `{key}` | {f'`{value}`' if value else ''} | {_cell(remark)} |" for key, value, remark in _lines(name)]
    return "\n".join(["| key | value | meaning |", "| --- | --- | --- |", *rows])


def _lines(name: str) -> list[tuple[str, str, str]]:
    group = f"{name.partition('/')[0]}." if "/" in name else ""
    path: list[tuple[int, str]] = []
    rows: list[tuple[str, str, str]] = []
    for line in _text(CONF / f"{name}.yaml").splitlines():
        match = LINE.match(line)
        if match is None:
            if rows and re.match(r" {8,}#", line):  # the remark of the line above goes on
                key, value, remark = rows.pop()
                rows.append((key, value, f"{remark} {line.strip(' #')}"))
            continue
        indent, value, remark = len(match["indent"]), match["value"].strip(), match["remark"] or ""
        while path and path[-1][0] >= indent:
            path.pop()
        path.append((indent, match["key"]))
        key = ".".join(part for _, part in path)
        filled_elsewhere = value == "{}" and not group
        if key.split(".")[0] in NO_SETTINGS or key.startswith(OWN_PAGE) or filled_elsewhere or not (value or remark):
            continue
        rows.append((group + key, value, remark))
    return rows


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _cell(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "\\|")
