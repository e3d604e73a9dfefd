"""MJP's Table 5 (Ren et al. 2023): what closed forms get out of masked jigsaws, by one command.

Its options are in `options`.
"""

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from experiments.audit.images import choose_images
from experiments.engine.setup import prepare
from experiments.python.load_config import load_config
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.options import matching
from experiments.studies.harness.study import Page, Study, Unit
from experiments.studies.harness.weights import class_count
from experiments.studies.mjp_table5.figure import write_figure
from experiments.studies.mjp_table5.options import arguments
from experiments.studies.mjp_table5.rows import (
    ADAPTIVE,
    APRIL,
    APRIL_TOLD,
    GROUPS,
    PATCH,
    PATCH_TOLD,
    TableCase,
    TableRow,
    plan,
)
from experiments.studies.mjp_table5.tables import page_of
from experiments.studies.mjp_table5.work import work
from fedsim.errors import ConfigError
from fedsim.settings.composition import Config
from fedsim.storage.digests import file_sha256

CHUNK = 20
"""Pictures of a unit: those of one model in one process at a time."""

PUBLISHED_APRIL = "experiments.studies.mjp_table5.attacks.PublishedApril"


def run(options: argparse.Namespace) -> None:
    """From settings to the table and the figure."""
    check(options)
    rows, checkpoints = matching("--rows", plan(options.ratio), options.rows), read_checkpoints(options.checkpoint)
    configs = {row.case: config_of(row.case, options, checkpoints) for row in rows}
    config = configs[rows[0].case]
    setup = prepare(config)
    chosen = choose_images(setup)
    victims = [(number, position, setup.data.train.ids[position]) for number, position in enumerate(chosen)]
    settings = {
        "pictures": str(options.pictures.resolve()),
        "models": list(options.models),
        "select": "per_class" if options.per_class else "random",
        "seed": options.seed,
        "checkpoints": {group: file_sha256(path) for group, path in sorted(checkpoints.items())},
        **{f"attack.{name}.{key}": v for name, values in config["attack"].items() for key, v in values.items()},
    }
    units = list(units_of(rows, configs, checkpoints, victims, options))
    shown = partial(page, rows=rows, options=options)
    Study(arguments(), [options.seed], settings, [units], work, shown).run(options)


def units_of(
    rows: Sequence[TableRow],
    configs: Mapping[TableCase, Config],
    checkpoints: Mapping[str, Path],
    victims: Sequence[tuple[int, int, str]],
    options: argparse.Namespace,
) -> Iterator[Unit]:
    """A few pictures in every case, chunk by chunk: what there is grows in all rows alike.

    Args:
        victims: of each picture the client's number, the position in the set, and the name.
    """
    for start in range(0, len(victims), CHUNK):
        some = victims[start : start + CHUNK]
        for case, config in configs.items():
            attacks = tuple(dict.fromkeys(row.attack for row in rows if row.case == case))
            own = {"case": case, "config": config, "checkpoint": checkpoints.get(case.group), "shown": options.shown}
            known = json.dumps({name: config[name] for name in ("model", "defense")}, sort_keys=True)
            mark = hashlib.sha256(known.encode()).hexdigest()[:8]
            key = f"{case.name}/{'+'.join(attacks)}/{start}-{start + len(some) - 1}/{mark}"
            yield Unit.of(options, key, {**own, "victims": some, "attacks": attacks})


def page(entries: list[Entry], rows: Sequence[TableRow], options: argparse.Namespace) -> Page:
    """The page; its figure is written beside it."""
    kept = len(list((options.out / "pictures" / "x").glob("*.png")))  # by the calls that computed them
    drawn = write_figure(rows, entries, min(options.shown, options.count, kept), options.out)
    return page_of(rows, entries, bool(options.checkpoint), drawn)


def config_of(case: TableCase, options: argparse.Namespace, checkpoints: Mapping[str, Path]) -> Config:
    """Settings of an audit of this case, with the attacks under the names that they have in the table."""
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
    attacks: dict[str, Any] = config["attack"]
    config["attack"] = {
        APRIL: {"_target_": PUBLISHED_APRIL, "told": False},
        APRIL_TOLD: {"_target_": PUBLISHED_APRIL, "told": True},
        PATCH: {**attacks["patch_gradient"], "localisation": "keep"},
        PATCH_TOLD: {**attacks["patch_gradient"], "localisation": "subtract"},
        ADAPTIVE: attacks["mjp_adaptive"],
    }
    if case.group in checkpoints:
        config["model"]["num_classes"] = class_count(checkpoints[case.group])
    return config


def read_checkpoints(given: Sequence[str]) -> dict[str, Path]:
    """Raises ConfigError for anything but GROUP=FILE."""
    result = {}
    for text in given:
        group, sign, name = text.partition("=")
        path = Path(name).expanduser()
        if not sign or group not in GROUPS:
            raise ConfigError("--checkpoint", text, f"MODEL=FILE, MODEL one of {', '.join(GROUPS)}")
        if not path.is_file():
            raise ConfigError("--checkpoint", text, fault="there is no such file")
        result[group] = path
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
