"""What MkDocs asks while it builds: pages of attacks and defenses get their tables from conf/ and from docstrings."""

import html
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import griffe
import yaml

from experiments.commands.families import in_families

ROOT = Path(__file__).parents[1]
GROUPS = {"attacks": "attack", "defenses": "defense"}
"""Folder of the pages, and of the options, below docs/ and conf/."""

GLANCE = {
    "attacks": ("needs", "gives", "exact", "refuses", "cost", "stopped_by", "not_stopped_by", "source"),
    "defenses": ("does", "identity", "cost", "beside", "stops", "does_not_stop", "source"),
}
"""Keys of a page's front matter, in the order of its first table; all but `beside` and `identity` are required."""

KNOWS = "knows"
"""Key of an attack's file that is none of its settings: what it needs to know beside what was shared."""

LETTER = re.compile(r"(?<![\w/])((?:∂\w/)?∂?\w)_(\w{1,4})(?!\w)")
"""A letter with its index in running text: W_p, σ_n, ∂L/∂W_qkv; no name_of_an_option."""


@dataclass(frozen=True)
class Setting:
    """One line of an option's file: its dotted key, its value as written, and what the file or the class says of it."""

    key: str
    value: str
    meaning: str


def options(folder: str) -> list[str]:
    """Names of the options that the pages of `folder` are about."""
    return sorted(path.stem for path in (ROOT / "conf" / GROUPS[folder]).glob("*.yaml"))


def families(folder: str) -> Iterator[tuple[str, list[str]]]:
    """The options under their headings; one without a heading comes last, under `Others`."""
    return in_families((name, str(settings(folder, name).get("_target_"))) for name in options(folder))


@cache
def settings(folder: str, name: str) -> dict[str, Any]:
    """The option's settings, below its own name."""
    found: dict[str, Any] = yaml.safe_load(_text(folder, name))[name]
    return found


# What MkDocs calls


def on_config(config: Any) -> Any:
    """Adds to the navigation the pages of all options, and those that it does not name: of docs/results, and others."""
    named = set(_pages(config["nav"]))
    for entry in config["nav"]:
        for folder in GROUPS:
            if isinstance(entry, dict) and [f"{folder}/index.md"] in entry.values():
                pages: list[Any] = [f"{folder}/index.md"]
                for heading, names in families(folder):
                    pages.append({heading: [{name: f"{folder}/{name}.md"} for name in names]})
                entry[next(iter(entry))] = pages
    for heading, pattern in (("Results", "results/*.md"), ("More", "*.md")):
        found = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").glob(pattern))
        if rest := [page for page in found if page not in named]:
            config["nav"].append({heading: rest})
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Fills `{{ … }}`, and puts the tables and the picture into pages of attacks and defenses."""
    markdown = re.sub(r"\{\{ file ([\w.]+) \}\}", lambda match: _read(match[1]), markdown)
    markdown = re.sub(r"\{\{ notebook (\w+) \}\}", lambda match: notebook(match[1]), markdown)
    folder, _, name = page.file.src_uri.removesuffix(".md").rpartition("/")
    if folder not in GROUPS:
        return markdown
    if name == "index":
        return markdown.replace("{{ index }}", index(folder))
    if name not in options(folder):
        raise ValueError(f"{page.file.src_uri}: conf/{GROUPS[folder]} has no {name}.yaml")
    head, _, body = markdown.partition("\n## ")
    parts = [head.rstrip(), picture(folder, name, page.meta), glance(folder, name, page.meta)]
    return "\n\n".join([*parts, f"## {body}".rstrip() if body else "", table(folder, name)]) + "\n"


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Sets sub- and superscripts: all in formulas, indices of single letters (W_p) in text; code stays as it is."""

    def set_formula(match: re.Match[str]) -> str:
        text = re.sub(r"\^(?:\{([^}]*)\}|(\w+))", lambda m: f"<sup>{m[1] or m[2]}</sup>", match[0])
        return re.sub(r"_(?:\{([^}]*)\}|(\w+))", lambda m: f"<sub>{m[1] or m[2]}</sub>", text)

    html = re.sub(r'<div class="formula">.*?</div>', set_formula, html, flags=re.DOTALL)
    parts = re.split(r"(<(code|pre|svg)\b.*?</\2>|<[^>]+>)", html, flags=re.DOTALL)
    for place in range(0, len(parts), 3):  # text, what was split at, the name of its tag, text, …
        parts[place] = LETTER.sub(r"\1<sub>\2</sub>", parts[place])
    return "".join(part for place, part in enumerate(parts) if place % 3 != 2)


# Parts of a page


def glance(folder: str, name: str, meta: Mapping[str, Any]) -> str:
    """The first table: what a reader asks first, from the front matter, and of an attack what it declares to know.

    Raises:
        KeyError: a page without one of the answers.
    """
    lines = ['<div class="glance" markdown>', "", "| | |", "| --- | --- |"]
    for key in GLANCE[folder]:
        if key in ("beside", "identity") and key not in meta:
            continue
        lines.append(f"| **{key.replace('_', ' ').capitalize()}** | {_linked(folder, meta[key])} |")
        if key == "needs":
            lines.append(f"| **Knows** | {_cell('; '.join(settings(folder, name)[KNOWS]))} |")
    return "\n".join([*lines, "", "</div>"])


def picture(folder: str, name: str, meta: Mapping[str, Any]) -> str:
    """The page's picture with its caption, where docs/make_pictures.py made one."""
    if not (ROOT / "docs" / "images" / folder / f"{name}.png").is_file():
        return ""
    caption = meta["picture"]
    return f"![{caption}](../images/{folder}/{name}.png)\n\n*{caption}*"


def index(folder: str) -> str:
    """The table of all options, under their headings."""
    columns = ("needs", "gives") if folder == "attacks" else ("does", "source")
    parts = []
    for heading, names in families(folder):
        lines = [f"## {heading}", "", f"| | {' | '.join(columns)} |", "| --- " * (len(columns) + 1) + "|"]
        for name in names:
            meta = _front_matter(ROOT / "docs" / folder / f"{name}.md")
            lines.append(f"| [`{name}`]({name}.md) | {' | '.join(str(meta[column]) for column in columns)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def table(folder: str, name: str) -> str:
    """All settings of an option: from its file, in its words, else in those of the class."""
    group, found = GROUPS[folder], list(read_settings(folder, name))
    lines = ["## Settings", ""]
    if found:
        lines += [f"Each is set as `{group}.{name}.KEY=VALUE`.", "", "| key | value | meaning |", "| --- | --- | --- |"]
        lines += [f"| `{s.key}` | {f'`{s.value}`' if s.value else ''} | {_cell(s.meaning)} |" for s in found]
    else:
        lines.append("It has none.")
    more = list(_unlisted(folder, name))
    if more:
        lines += ["", "The class has more, which a `+` in front adds:", ""]
        lines += ["| key | value | meaning |", "| --- | --- | --- |"]
        lines += [f"| `{s.key}` | `{s.value}` | {_cell(s.meaning)} |" for s in more]
    path, target = f"conf/{group}/{name}.yaml", settings(folder, name)["_target_"]
    source = "\n".join(f"    {line}" for line in _text(folder, name).rstrip().splitlines())
    found_in = _class(target)
    code = f"`{found_in.path}`" if found_in is not None else f"`{target}`"
    return "\n".join([*lines, "", f'??? note "{path}, for {code}"', "", "    ```yaml", source, "    ```"])


def read_settings(folder: str, name: str) -> Iterator[Setting]:
    """The lines of conf/GROUP/NAME.yaml below its `_target_` and what it knows, keys joined by dots."""
    path: list[tuple[int, str]] = []
    pending: list[str] = []
    rows: list[Setting] = []
    for line in _text(folder, name).splitlines():
        indent = len(line) - len(line.lstrip())
        if line.lstrip().startswith("#"):
            remark = line.strip("# ").strip()
            if rows and indent > _indent_of_value(path):
                rows[-1] = Setting(rows[-1].key, rows[-1].value, f"{rows[-1].meaning} {remark}".strip())
            elif indent:
                pending.append(remark)
            continue
        match = re.match(r"\s*(?P<key>[\w-]+):\s*(?P<value>.*?)(?:\s+#\s*(?P<remark>.*))?$", line)
        if match is None:
            continue
        while path and path[-1][0] >= indent:
            path.pop()
        path.append((indent, match["key"]))
        if indent == 0 or (match["key"] in ("_target_", KNOWS) and len(path) == 2):
            continue
        key = ".".join(part for _, part in path[1:])
        remark = " ".join([*pending, match["remark"] or ""]).strip()
        pending = []
        rows.append(Setting(key, match["value"].strip('"'), remark))
    for row in rows:
        if not row.value:  # the head of nested settings, whose lines follow
            continue
        yield row if row.meaning else Setting(row.key, row.value, _from_class(folder, name, row.key))


def notebook(name: str) -> str:
    """The cells of docs/notebooks/NAME.ipynb as Markdown, less the title, which is the page's."""
    cells = json.loads(_read(f"docs/notebooks/{name}.ipynb"))["cells"]
    told = ["".join(cell["source"]) for cell in cells]
    shown = [
        text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        for cell, text in zip(cells, told, strict=True)
    ]
    text = "\n\n".join(shown).split("\n", 1)[1]
    return text.replace("](../", "](")  # a notebook's links are from its own folder


# Reading


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _pages(entry: Any) -> Iterator[str]:
    """The pages that an entry of the navigation names, at any depth."""
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from _pages(inner)


def _text(folder: str, name: str) -> str:
    return _read(f"conf/{GROUPS[folder]}/{name}.yaml")


def _indent_of_value(path: list[tuple[int, str]]) -> int:
    """Remarks further in than this belong to the line above them."""
    return path[-1][0] + 8 if path else 0


def _front_matter(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8").split("---\n")[1])
    return found


def _linked(folder: str, value: Any) -> str:
    """A list of options becomes links to their pages; others are sentences, or remarks in brackets."""
    if not isinstance(value, list):
        return _cell(str(value))
    other = next(name for name in GROUPS if name != folder)
    known = dict.fromkeys(options(folder), "") | dict.fromkeys(options(other), f"../{other}/")
    told, plain = "", True
    for word in map(str, value):
        before, plain = plain, word in known
        between = " " if word.startswith("(") else ", " if before and plain else "; "
        told += between * bool(told) + (f"[`{word}`]({known[word]}{word}.md)" if plain else _cell(word))
    return told or "nothing here"


def _cell(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "\\|") if "`" not in text else text.replace("|", "\\|")


@cache
def _package(name: str) -> griffe.Module:
    found = griffe.load(name, search_paths=[ROOT], resolve_aliases=True)
    assert isinstance(found, griffe.Module)
    return found


@cache
def _class(target: str) -> griffe.Class | None:
    package, _, rest = target.partition(".")
    found: Any = _package(package)
    try:
        found = found[rest]
    except KeyError:
        return None
    found = found.final_target if found.is_alias else found
    return found if found.is_class else None


def _described(found: griffe.Class) -> dict[str, str]:
    """What the class's docstring says of its arguments, or its bases' where it is silent."""
    words: dict[str, str] = {}
    for base in reversed([found, *found.resolved_bases]):
        if base.docstring is None:
            continue
        for section in base.docstring.parse("google", warnings=False):
            if section.kind.value in ("parameters", "attributes"):
                for entry in section.value:
                    words |= dict.fromkeys(re.split(r",\s*", entry.name), " ".join(entry.description.split()))
    return words


def _arguments(found: griffe.Class) -> dict[str, str | None]:
    """Names and defaults of the constructor's arguments."""
    return {p.name: str(p.default) for p in found.parameters if p.name != "self" and p.default is not None}


def _from_class(folder: str, name: str, key: str) -> str:
    """What the class that the key belongs to says of it; nested settings have classes of their own."""
    *parents, last = key.split(".")
    inner: Any = settings(folder, name)
    for parent in parents:
        inner = inner.get(parent, {})
    target = inner.get("_target_") if isinstance(inner, dict) else None
    if last == "_target_" or target is None:
        return "the class" if last == "_target_" else ""
    found = _class(target)
    return "" if found is None else _described(found).get(last, "")


def _unlisted(folder: str, name: str) -> Iterator[Setting]:
    """Arguments of the class that the file leaves at their defaults."""
    given = settings(folder, name)
    found = _class(given["_target_"])
    if found is None:
        return
    described = _described(found)
    for key, default in _arguments(found).items():
        if key not in given and described.get(key):
            value = "null" if default == "None" else str(default).strip("'\"")
            yield Setting(f"+{GROUPS[folder]}.{name}.{key}", value, described[key])
