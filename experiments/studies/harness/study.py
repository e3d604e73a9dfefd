"""What studies have in common: units of work that are done once, and a page of results.

A study is its plan (`Study`) and its sentences (`Page`). The same command goes on where an earlier call stopped.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments.cli.call import console
from experiments.cli.machine import cores
from experiments.cli.progress import Bars
from experiments.studies.harness.ledger import Entry, Ledger, kept
from experiments.studies.harness.processes import spread
from experiments.studies.harness.tables import Value, markdown, write_csv
from fedsim.determinism import torch_threads
from fedsim.errors import ConfigError, RunError
from fedsim.storage.durable import write_text


@dataclass(frozen=True)
class Unit:
    """What is computed in one go, a minute or so of work.

    Attributes:
        key: names it in the ledger: of what it depends on, what differs between units.
        settings: for the function that computes it.
    """

    key: str
    settings: Mapping[str, Any]
    out: Path
    threads: int
    device: str

    @classmethod
    def of(cls, options: argparse.Namespace, key: str, settings: Mapping[str, Any]) -> "Unit":
        """A unit that is computed where the options say."""
        return cls(key, settings, options.out, options.threads, options.device)


@dataclass(frozen=True)
class Table:
    """A table of a page.

    Attributes:
        name: of its CSV file.
        rows: texts as people read them.
        record: names of the CSV's columns and its rows, in full precision.
    """

    name: str
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    record: tuple[Sequence[str], Sequence[Sequence[Value]]]


@dataclass(frozen=True)
class Page:
    """What a study shows.

    Attributes:
        differs: what differs from the paper, and why, a sentence each.
        figures: file names beside the page, with what they show.
    """

    name: str
    title: str
    introduction: str
    tables: Sequence[Table]
    differs: Sequence[str]
    figures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """What a study computes and shows.

    Attributes:
        parser: of its options.
        seeds: that its page names.
        settings: what the units' results depend on besides their keys.
        stages: units; those of one are begun when the one before it is done.
        work: gives a unit's entries (of numbers and texts that JSON has); a function of a module.
        page: of all entries.
    """

    parser: argparse.ArgumentParser
    seeds: Sequence[int]
    settings: Mapping[str, Any]
    stages: Sequence[Sequence[Unit]]
    work: Callable[[Unit], list[Entry]]
    page: Callable[[list[Entry]], Page]

    def run(self, options: argparse.Namespace) -> None:
        """Compute what an earlier call has not, and write the page.

        Raises:
            ConfigError: the folder holds results of other settings, or another call is at work in it.
            RunError: a unit failed.
        """
        entries: list[Entry] = []
        for units in self.stages:
            entries += carry_out(units, self.work, options, self.settings)
        publish(self.page(entries), options, self.seeds, self.parser, entries)


def check(options: argparse.Namespace) -> None:
    """Raises ConfigError: an option that several studies have cannot work."""
    for name in ("count", "steps", "restarts", "seeds", "clients", "threads", "workers"):
        value = getattr(options, name, None)
        if value is not None and value < 1:
            raise ConfigError(f"--{name}", value, "at least 1")
    if getattr(options, "device", None) == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device", "cuda", "cpu: there is no CUDA device here")
    images = getattr(options, "pictures", None)
    if images is not None and not images.is_dir():
        raise ConfigError("--pictures", images, "a folder; there is no such folder")


def carry_out(
    units: Sequence[Unit], work: Callable[[Unit], list[Entry]], options: argparse.Namespace, settings: Mapping[str, Any]
) -> list[Entry]:
    """The entries of all units, of the arguments of a `Study`.

    `unit` in each names the unit it is from, `by` the code and machine that computed it, `call` the call of this
    function that did, and `after` the seconds that had passed in it by then.

    Raises:
        ConfigError: the folder holds results of other settings, or another call is at work in it.
        RunError: a unit failed, or gave a number that is not finite; the others' results are kept.
    """
    with kept(options.out, settings) as ledger:
        return _carry_out(units, partial(_computed, work), options, ledger)


def _carry_out(
    units: Sequence[Unit], work: Callable[[Unit], list[Entry]], options: argparse.Namespace, ledger: Ledger
) -> list[Entry]:
    known: dict[str, list[Entry]] = {line["unit"]: line["entries"] for line in ledger.entries}
    origins: dict[str, Entry] = {line["unit"]: {"by": "an unknown commit", **_origin(line)} for line in ledger.entries}
    todo = [unit for unit in units if unit.key not in known]
    by, workers = code_and_machine(options.device), options.workers or _workers(options.device)
    call, start = datetime.now(UTC).isoformat(), time.monotonic()
    with Bars(console) as bars:
        bars.set("units", len(units) - len(todo), len(units))
        for number, (key, entries) in enumerate(spread(work, ((unit.key, unit) for unit in todo), workers), 1):
            origin = {"by": by, "call": call, "after": round(time.monotonic() - start, 1)}
            ledger.add({"unit": key, **origin, "entries": entries})
            known[key], origins[key] = entries, origin
            done = len(units) - len(todo) + number
            bars.set("units", done, len(units), key)
            bars.say(f"units {done}/{len(units)}: {key}")
    return [{"unit": unit.key, **origins[unit.key], **entry} for unit in units for entry in known[unit.key]]


def _computed(work: Callable[[Unit], list[Entry]], unit: Unit) -> list[Entry]:
    """Raises RunError: a result is NaN or infinite, which no page could show."""
    with torch_threads(unit.threads):
        entries = work(unit)
    for entry in entries:
        for key, value in entry.items():
            try:
                json.dumps(value, allow_nan=False)
            except ValueError as error:
                raise RunError(f"{key} is not finite, so there is nothing to show of it") from error
    return entries


def _origin(line: Mapping[str, Any]) -> Entry:
    return {name: line[name] for name in ("by", "call", "after") if name in line}


def publish(
    page: Page,
    options: argparse.Namespace,
    seeds: Sequence[int],
    parser: argparse.ArgumentParser,
    entries: Iterable[Mapping[str, Any]],
) -> Path:
    """Write `NAME.md` and each table's CSV, and print the page.

    Args:
        entries: those that the page shows, of `carry_out`.
    """
    stamped, command = stamp(options, seeds, entries), command_of(page.name, parser, options)
    lines = [f"# {page.title}", "", page.introduction, "", f"```bash\n{command}\n```", "", stamped, ""]
    for table in page.tables:
        if len(page.tables) > 1:
            lines += [f"## {table.title}", ""]
        lines += [markdown(table.header, table.rows)]
        write_csv(options.out / f"{table.name}.csv", *table.record)
    lines += [f"![{text}]({file})\n" for file, text in page.figures.items()]
    lines += ["What differs, and why:", "", *(f"- {sentence}" for sentence in page.differs)]
    path: Path = options.out / f"{page.name}.md"
    write_text(path, "\n".join(lines) + "\n")
    console.print(path.read_text(encoding="utf-8"), markup=False)
    console.print(str(path), markup=False)
    return path


def stamp(options: argparse.Namespace, seeds: Sequence[int], entries: Iterable[Mapping[str, Any]]) -> str:
    """Date, scale and seeds, which code computed the units on which machine, and how long that took, in a line."""
    entries = list(entries)
    drawn = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
    made = makers({entry["unit"]: entry["by"] for entry in entries}.values(), "units")
    scale = [f"scale {options.scale}"] if hasattr(options, "scale") else []
    return " · ".join([datetime.now(UTC).date().isoformat(), *scale, drawn, *made, *_took(entries)])


def makers(by: Iterable[str], noun: str) -> list[str]:
    """Which code made what there is, on which machine, and where they are several, how much of it."""
    made = Counter(by)
    return [one if len(made) == 1 else f"{one} ({count} {noun})" for one, count in made.items()]


def _took(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """The wall time of all calls, up to the last unit of each; nothing where that of a unit was not kept."""
    last: dict[str, float] = {}
    for entry in entries:
        if "after" not in entry:
            return []
        last[entry["call"]] = max(last.get(entry["call"], 0.0), entry["after"])
    return [f"{sum(last.values()) / 60:.0f} min" if sum(last.values()) >= 90 else f"{sum(last.values()):.0f} s"]


def command_of(name: str, parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    """What was called: every option that has not its default, DIR for folders and FILE for files."""
    words = ["python -m", f"experiments.studies.{name}"]
    for option, value in vars(options).items():
        if value == parser.get_default(option):
            continue
        values = value if isinstance(value, list) else [value] * (value is not True)  # a flag has no value
        words += [f"--{option.replace('_', '-')}", *(_word(one) for one in values)]
    return " ".join(words)


def _word(value: object) -> str:
    if isinstance(value, Path):
        return "FILE" if value.is_file() else "DIR"
    name, sign, path = str(value).partition("=")
    return f"{name}=FILE" if sign and Path(path).expanduser().is_file() else shlex.quote(str(value))


def seeds(options: argparse.Namespace, default: int) -> list[int]:
    """The seeds that were asked for."""
    return list(range(options.seed, options.seed + (options.seeds or default)))


def spread_of(values: Iterable[float], form: str = ".1f") -> str:
    """`mean ± standard deviation` of several, the value of one."""
    known = torch.tensor(list(values), dtype=torch.float64)
    if known.numel() == 1:
        return format(known.item(), form)
    return f"{format(known.mean().item(), form)} ± {format(known.std().item(), form)}"


def counted(text: str, done: int, count: int) -> str:
    """A text with how many of the asked ones it is of, where it is not of all."""
    return text if done == count else f"{text} ({done} of {count})"


def _workers(device: str) -> int:
    return 1 if device == "cuda" else cores()


def _place(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else f"{cores()} CPU cores"


def code_and_machine(device: str) -> str:
    """What a result says that it was computed by."""
    return f"{_commit()} on {_place(device)}"


def _commit() -> str:
    """Of the code that runs, `-dirty` where files of it are changed; "no commit" where it is not a checkout."""
    git = shutil.which("git")
    if git is None:
        return "no commit"
    here = Path(__file__).resolve().parent
    found = subprocess.run(  # noqa: S603 - git, with constant arguments
        [git, "describe", "--always", "--dirty", "--exclude", "*"],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    return f"commit {found.stdout.strip()}" if found.returncode == 0 else "no commit"
