"""`--help`, `--help GROUP`, `--help OPTION` and `--help KEY`, answered before Hydra sees them."""

import re
from collections.abc import Iterator, Sequence
from importlib.resources import files

from experiments.commands.catalogue import LISTS, Catalogue, Option, groups_of
from experiments.commands.families import in_families
from experiments.commands.screens import ALL, EXAMPLES, SETTINGS
from experiments.commands.table import COMMANDS
from fedsim.errors import nearest

WIDTH = 100
PURPOSES = {
    "data": "where the images come from",
    "partition": "how they are divided among clients",
    "model": "what is trained, and attacked",
    "finetune": "which parameters are trained and shared",
    "strategy": "how the server aggregates",
    "defense": "what clients do to their updates",
    "attack": "what the curious server tries",
    "bound": "what stands beside the attacks' results",
    "tracker": "where figures go beside the run folder",
    "simulation": "where clients and attacks run",
    "experiment": "settings that belong together",
}


def screen(name: str, catalogue: Catalogue) -> str:
    """What a command is for, its groups, what is set most often: at most forty lines."""
    groups = [_fitted(f"  {group:<12}", _counted(options)) for group, options in catalogue.groups.items()]
    lists = [group for group in catalogue.groups if group in LISTS]
    if name == "fedsim":
        commands = ["Commands", *(f"  {other:<16} {purpose}" for other, purpose in ALL.items())]
    else:
        commands = [f"{name}: {ALL[name]}.", "fedsim --help lists all commands."]
    parts = [
        [f"{name} [GROUP=OPTION …] [KEY=VALUE …]"],
        commands,
        [f"Groups; of {' and '.join(lists)} several: {lists[0]}=[A,B]", *groups],
        ["Settings", *SETTINGS[name].splitlines()],
        ["Examples", *EXAMPLES[name].splitlines()],
        [
            *(["Each command has a --help of its own: fedsim-audit --help."] if name == "fedsim" else []),
            "More: --help GROUP (its options), --help OPTION or --help KEY (its settings), --help all;",
            "--cfg job (the composed settings), --hydra-help (sweeps, launchers, shell completion).",
        ],
    ]
    return "\n\n".join("\n".join(part) for part in parts)


def answer(name: str, catalogue: Catalogue, words: Sequence[str]) -> tuple[str, str]:
    """The pages for these words, and what to say of the first that nothing is called by; one of both is empty.

    A word is a group, an option, `GROUP=OPTION`, `GROUP=[OPTION,OPTION]` or a setting's key.
    """
    if not words:
        return screen(name, catalogue), ""
    pages = []
    for word in words:
        found = list(_pages(name, catalogue, word))
        if not found:
            return "", _unknown(name, catalogue, word)
        pages += found
    return "\n\n".join(pages), ""


def _pages(name: str, catalogue: Catalogue, word: str) -> Iterator[str]:
    key, equals, value = word.lstrip("+~").partition("=")
    if equals and key in catalogue.groups:
        chosen = set(re.findall(r"[\w.-]+", value))
        yield from (option_page(one) for one in catalogue.groups[key] if one.name in chosen)
    elif key in catalogue.groups:
        yield group_page(name, key, catalogue.groups[key])
    elif options := catalogue.find(key.rpartition("/")[2]):
        yield from map(option_page, options)
    elif key.split(".")[0] in catalogue.groups:
        group, inner, *_ = key.split(".")
        having = [
            one for one in catalogue.groups[group] if re.search(rf"^\s*{re.escape(inner)}:", one.text, re.MULTILINE)
        ]
        yield from map(option_page, catalogue.find(inner) if group in LISTS else having[:1])
    elif block := _block(catalogue.main, key.split(".")[0]):
        yield block


def group_page(name: str, group: str, options: Sequence[Option]) -> str:
    """The group's options with a line each; attacks and defenses by family."""
    usage = f"{group}=[OPTION,OPTION]" if group in LISTS else f"{group}=OPTION"
    lines = [f"{usage}: {PURPOSES.get(group, 'a group of settings')}. Settings: {name} --help OPTION"]
    by_name = {option.name: option for option in options}
    width = max(map(len, by_name), default=0)
    families = [("", list(by_name))]
    if group in ("attack", "defense"):
        families = list(in_families((option.name, option.target) for option in options))
    for heading, names in families:
        lines += ["", heading] if heading else [""]
        lines += [_fitted(f"  {one:<{width}}  ", _phrase(by_name[one].summary, WIDTH - width - 4)) for one in names]
    return "\n".join(lines)


def option_page(option: Option) -> str:
    """The option's file, which describes itself."""
    more = f"{option.group}.{option.name}.KEY=VALUE" if option.group in LISTS else f"{option.group}.KEY=VALUE"
    return f"{option.chosen}        each setting: {more}\n\n{option.text.rstrip()}"


def _unknown(name: str, catalogue: Catalogue, word: str) -> str:
    if other := _elsewhere(name, word):
        return f"--help {word}: {name} has no such group; ask {other} --help {word}"
    known = [*catalogue.groups, *(one.name for options in catalogue.groups.values() for one in options)]
    known += re.findall(r"^(\w+):", catalogue.main, flags=re.MULTILINE)
    nested = re.search(rf"^(\w+):(?:\n(?:[ #].*)?)*?\n  {re.escape(word)}:", catalogue.main, flags=re.MULTILINE)
    if nested:
        return f"--help {word}: no group, option or setting is called so. Did you mean '{nested[1]}.{word}'?"
    hint = nearest(word, ["all", *known]) or f" Groups: {', '.join(catalogue.groups)}."
    return f"--help {word}: no group, option or setting is called so.{hint}"


def _elsewhere(name: str, word: str) -> str:
    """Another command that has this group; empty where none has."""
    mains = {other: files("conf").joinpath(f"{command.config}.yaml") for other, command in COMMANDS.items()}
    having = (other for other, main in mains.items() if other != name and word in groups_of(main.read_text("utf-8")))
    return next(having, "")


def _block(text: str, key: str) -> str:
    """The lines of a main configuration that set this key; empty where none does."""
    if key in ("hydra", "defaults"):
        return ""
    lines = iter(text.splitlines())
    found: list[str] = []
    for line in lines:
        if found and line and not line.startswith((" ", "#")):
            break
        if found or re.match(rf"{re.escape(key)}:", line):
            found.append(line)
    while found and (not found[-1] or found[-1].startswith("#")):
        found.pop()
    return "\n".join(found)


def _counted(options: Sequence[Option]) -> str:
    return f"{len(options):>2}: {', '.join(option.name for option in options)}"


def _fitted(start: str, text: str) -> str:
    """In one line, cut at a blank where it is too long."""
    whole = f"{start}{text}".rstrip()
    if len(whole) <= WIDTH:
        return whole
    return f"{whole[: WIDTH - 1].rpartition(' ')[0].rstrip(',')} …"


def _phrase(text: str, room: int) -> str:
    """The text, or of a long one its first sentences or the longest beginning that says something by itself."""
    if len(text) <= room:
        return text.removesuffix(".")
    for sign in (r"\.\s", r"[:;]\s| \("):
        ends = [match.start() for match in re.finditer(sign, text[: room + 1])]
        if whole := [text[:end] for end in ends if end > room // 3 and _is_whole(text[:end])]:
            return whole[-1]
    return text


def _is_whole(text: str) -> bool:
    return text.count("(") == text.count(")") and text.count('"') % 2 == 0 and not text.endswith("et al")
