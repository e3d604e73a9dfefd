"""From the options of MJP's Table 5 to what is still to be measured."""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from experiments.python.load_config import load_config
from experiments.studies.harness.ledger import Entry, Ledger
from experiments.studies.harness.study import digest
from experiments.studies.harness.weights import class_count
from experiments.studies.mjp_table5.rows import (
    ADAPTIVE,
    APRIL,
    APRIL_TOLD,
    GROUPS,
    MEAN,
    PATCH,
    PATCH_TOLD,
    TableCase,
    TableRow,
)
from experiments.studies.mjp_table5.worker import TableUnit, TableVictim
from fedsim.errors import ConfigError
from fedsim.settings.composition import Config

CHUNK = 20
"""Pictures of a unit: those of one model in one process at a time."""

ENOUGH_REFUSALS = 3
"""Pictures on which an attack refuses for one reason; it is then not tried on the others."""

PUBLISHED_APRIL = "experiments.studies.mjp_table5.attacks.PublishedApril"


@dataclass(frozen=True)
class TableJob:
    """One command, as asked for."""

    options: argparse.Namespace
    rows: Sequence[TableRow]
    checkpoints: Mapping[str, Path]

    @property
    def cases(self) -> list[TableCase]:
        return list(dict.fromkeys(row.case for row in self.rows))

    def settings(self, config: Config) -> dict[str, Any]:
        """What every result depends on, but for a case's model and defense. `config`: of any case, for its attacks."""
        options = self.options
        files = {group: digest(path) for group, path in sorted(self.checkpoints.items())}
        return {
            "pictures": str(options.pictures.resolve()),
            "models": list(options.models),
            "select": "per_class" if options.per_class else "random",
            "seed": options.seed,
            "checkpoints": files,
            **{f"attack.{name}.{key}": v for name, values in config["attack"].items() for key, v in values.items()},
        }

    def config(self, case: TableCase) -> Config:
        """Settings of an audit of this case, with the attacks under the names that they have in the table."""
        options = self.options
        overrides = [
            "simulation=inline",
            "tracker=[]",
            "data=imagefolder",
            "data.test_fraction=0",
            "data.auxiliary_fraction=0",
            "data.verify=false",
            f"seed={options.seed}",
            f"simulation.threads={options.threads}",
            f"client.device={options.device}",
            f"audit.num_images={options.count}",
            f"audit.select={'per_class' if options.per_class else 'random'}",
            "attack=[patch_gradient,mjp_adaptive]",
            *case.overrides(tuple(options.models)),
        ]
        config = load_config("audit", *overrides, data={"path": str(options.pictures)})
        attacks = config["attack"]
        config["attack"] = {
            APRIL: {"_target_": PUBLISHED_APRIL, "told": False},
            APRIL_TOLD: {"_target_": PUBLISHED_APRIL, "told": True},
            PATCH: {**attacks["patch_gradient"], "localisation": "keep"},
            PATCH_TOLD: {**attacks["patch_gradient"], "localisation": "subtract"},
            ADAPTIVE: attacks["mjp_adaptive"],
        }
        if case.group in self.checkpoints:
            config["model"]["num_classes"] = class_count(self.checkpoints[case.group])
        return config


class Standing:
    """Which results there are, and which are given up."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._ended: set[tuple[str, str, int]] = set()
        self._done: set[tuple[str, str]] = set()
        self._refusals: Counter[tuple[str, str, str]] = Counter()
        for entry in ledger.entries:
            self._note(entry)

    def add(self, entry: Entry) -> None:
        self._ledger.add(entry)
        self._note(entry)

    def pending(self, case: TableCase, attack: str, number: int) -> bool:
        """What failed is tried again."""
        if (case.name, attack, number) in self._ended:
            return False
        refused = [n for (name, by, _), n in self._refusals.items() if (name, by) == (case.name, attack)]
        return (case.name, attack) in self._done or max(refused, default=0) < ENOUGH_REFUSALS

    def _note(self, entry: Entry) -> None:
        key = (entry["case"], entry["attack"])
        if entry["status"] != "failed":
            self._ended.add((*key, entry["number"]))
        if entry["status"] == "done":
            self._done.add(key)
        if entry["status"] == "refused":
            self._refusals[(*key, entry["reason"])] += 1


@dataclass(frozen=True)
class Portion:
    """A unit, or nothing where all of its pictures are done; `done`: pictures up to and with it."""

    unit: TableUnit | None
    done: int
    note: str


def portions(
    job: TableJob,
    configs: Mapping[TableCase, Config],
    ids: Sequence[str],
    chosen: Sequence[int],
    standing: Standing,
    public: Tensor | None,
) -> Iterator[Portion]:
    """A few pictures in every case first, then chunk by chunk: what there is grows in all rows alike."""
    options, done = job.options, 0
    attacks = {case: tuple(dict.fromkeys(r.attack for r in job.rows if r.case == case)) for case in job.cases}
    starts = [0, *range(ENOUGH_REFUSALS, len(chosen), CHUNK)]
    for start, end in zip(starts, [*starts[1:], len(chosen)], strict=True):
        for case in job.cases:
            victims = []
            for number in range(start, min(end, len(chosen))):
                left = tuple(attack for attack in attacks[case] if standing.pending(case, attack, number))
                if left:
                    victims.append(TableVictim(number, chosen[number], ids[chosen[number]], left))
            done += min(end, len(chosen)) - start
            folder, shown = options.out / "pictures", options.shown
            unit = TableUnit(
                case,
                configs[case],
                victims,
                job.checkpoints.get(case.group),
                folder,
                shown,
                public if MEAN in attacks[case] else None,
                options.device,
                options.threads,
            )
            yield Portion(unit if victims else None, done, case.name)


def read_checkpoints(given: Sequence[str]) -> dict[str, Path]:
    """Raises ConfigError for anything but GROUP=FILE."""
    result = {}
    for text in given:
        group, sign, path = text.partition("=")
        if not sign or group not in GROUPS:
            raise ConfigError("--checkpoint", text, f"MODEL=FILE, MODEL one of {', '.join(GROUPS)}")
        if not Path(path).expanduser().is_file():
            raise ConfigError("--checkpoint", text, fault="there is no such file")
        result[group] = Path(path).expanduser()
    return result


def check(options: argparse.Namespace) -> None:
    """Raises ConfigError for numbers that cannot be."""
    if options.shown < 0:
        raise ConfigError("--shown", options.shown, "0 or more")
    for ratio in options.ratio:
        if not 0 < ratio < 1:
            raise ConfigError("--ratio", ratio, "above 0 and below 1")
    if len(set(options.ratio)) < len(options.ratio):
        raise ConfigError("--ratio", options.ratio, "each ratio once")
