"""Thousands of certificates, each held against the truth: is one ever wrong, and how often is there one?

python -m experiments.benchmarks.certified --pictures DIR --out DIR                       about 20 minutes on 2 cores
python -m experiments.benchmarks.certified --out DIR --count 500 --page certificates.md   on scikit-learn's digits

Models are trained first, then everything is passed through until there are as many certificates as asked for: every
model, state of training, defense and protocol, and random combinations of them. Each pass draws other images. The same
command goes on where an earlier call stopped. Exit code 1: a certificate was wrong.
"""

# ruff: noqa: E402 - the options are read before anything heavy is imported
import argparse
from pathlib import Path

from experiments.cli.machine import cores
from experiments.studies.harness.options import folder, parsed


def _parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--pictures", type=folder, help="folder of class folders; default: scikit-learn's digits")
    found.add_argument("--out", type=Path, required=True, help="folder of results.jsonl and the models' weights")
    found.add_argument("--page", type=Path, help="the page; default: certificates.md in the folder of results")
    found.add_argument("--count", type=int, default=5000, help="of certificates, at least")
    found.add_argument("--passes", type=int, default=20, help="at most, however few certificates there are")
    found.add_argument("--processes", type=int, dest="workers", default=cores(), help="default: the CPU cores")
    found.set_defaults(threads=1, device="cpu", seeds=None)
    return found


if __name__ == "__main__":
    parsed(_parser())

import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

from experiments.benchmarks.certified_cases.cells import CertifiedCell, cells
from experiments.benchmarks.certified_cases.models import MODELS
from experiments.benchmarks.certified_cases.page import certified, page, wrong
from experiments.benchmarks.certified_cases.work import compute
from experiments.studies.harness.command import call
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Unit, carry_out, check, makers
from fedsim.storage.durable import write_text

TOGETHER = 100
"""Units between two looks at how many certificates there are."""

SHARED = ("model", "state", "defense", "protocol", "number", "purpose")


def main() -> None:
    """Trains, attacks, judges and writes the page."""
    call(_run, _parser())


def _run(options: argparse.Namespace) -> None:
    check(options)
    pictures = None if options.pictures is None else str(options.pictures)
    trainings = [_unit(f"train/{name}", {"train": name, "pictures": pictures}, options) for name in MODELS]
    settings = {"pictures": pictures}
    trained = carry_out(trainings, compute, options, settings)
    units: list[Unit] = []
    cell_of: dict[str, CertifiedCell] = {}
    entries: list[Entry] = []
    for number in itertools.count():
        told = {cell.key: cell for cell in cells(number)}
        cell_of |= told
        keys = list(told)
        for start in range(0, len(keys), TOGETHER):
            some = keys[start : start + TOGETHER]
            units += [_unit(key, {"cell": told[key], "pictures": pictures}, options) for key in some]
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


def _unit(key: str, settings: dict[str, object], options: argparse.Namespace) -> Unit:
    return Unit(key, settings, options.out, options.threads, options.device)


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


if __name__ == "__main__":
    main()
