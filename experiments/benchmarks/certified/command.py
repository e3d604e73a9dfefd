"""Passes of everything that is varied, until there are as many certificates as asked for, and their page."""

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

from experiments.benchmarks.certified.cells import CertifiedCell, cells
from experiments.benchmarks.certified.models import MODELS
from experiments.benchmarks.certified.page import certified, page, wrong
from experiments.benchmarks.certified.work import compute
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Unit, carry_out, makers
from fedsim.storage.durable import write_text

TOGETHER = 100
"""Units between two looks at how many certificates there are."""

SHARED = ("model", "state", "defense", "protocol", "number", "purpose")


def run(options: argparse.Namespace) -> None:
    """Trains, attacks, judges and writes the page."""
    images = None if options.pictures is None else str(options.pictures)
    trainings = [Unit.of(options, f"train/{name}", {"train": name, "pictures": images}) for name in MODELS]
    settings = {"pictures": images}
    trained = carry_out(trainings, compute, options, settings)
    units: list[Unit] = []
    cell_of: dict[str, CertifiedCell] = {}
    entries: list[Entry] = []
    for number in itertools.count():
        planned = {cell.key: cell for cell in cells(number)}
        cell_of |= planned
        keys = list(planned)
        for start in range(0, len(keys), TOGETHER):
            some = keys[start : start + TOGETHER]
            units += [Unit.of(options, key, {"cell": planned[key], "pictures": images}) for key in some]
            entries = [
                {**{name: getattr(cell_of[entry["unit"]], name) for name in SHARED}, **entry}
                for entry in carry_out(units, compute, options, settings)
            ]
            if len(certified(entries)) >= options.count:
                break
        _say(entries)
        if len(certified(entries)) >= options.count or number + 1 == options.passes:
            break
    text = page(entries, _command(options), _stamp([*trained, *entries], trained))
    path = options.page or options.out / "certificates.md"
    write_text(path, text)
    print(path)
    sys.exit(1 if wrong(entries) else 0)


def _say(entries: list[Entry]) -> None:
    """How far it is, and how fast each attack was on each model."""
    kept, faults = certified(entries), wrong(entries)
    print(f"{len(entries):,} attacks, {len(kept):,} certificates, {len(faults):,} wrong")
    for (model, attack), (count, seconds) in sorted(_throughput(entries)):
        print(f"  {model:15}{attack:18}{count:7} {1000 * seconds / count:9.1f} ms each")


def _throughput(entries: list[Entry]) -> Iterator[tuple[tuple[str, str], tuple[int, float]]]:
    counts: Counter[tuple[str, str]] = Counter()
    seconds: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        if "attack" in entry:
            pair = entry["model"], entry["attack"]
            counts[pair] += 1
            seconds[pair] += entry["seconds"] + entry["shared"]
    for pair, count in counts.items():
        yield pair, (count, seconds[pair])


def _stamp(entries: list[Entry], trained: list[Entry]) -> str:
    """Date, code, machine and minutes of all calls, and what training reached."""
    last: dict[str, float] = {}
    for entry in entries:
        last[entry["call"]] = max(last.get(entry["call"], 0.0), entry["after"])
    made = makers({entry["unit"]: entry["by"] for entry in entries}.values(), "units")
    took = f"{sum(last.values()) / 60:.0f} min"
    return " · ".join([datetime.now(UTC).date().isoformat(), *made, took, "seed 0", _reached(trained)])


def _reached(trained: list[Entry]) -> str:
    """What the last states of training are: those that were not reached by name."""
    short = [
        f"{entry['unit'].removeprefix('train/')} {entry['state']} {entry['accuracy']:.2f}"
        for entry in trained
        if entry["state"] in ("fitted", "label_noise") and entry["accuracy"] < 1.0
    ]
    return "train accuracy 1.0 " + (f"but for {', '.join(short)}" if short else "where the tables say so")


def _command(options: argparse.Namespace) -> str:
    images = "" if options.pictures is None else " --pictures DIR"
    return f"python -m experiments.benchmarks.certified{images} --out DIR --count {options.count}"
