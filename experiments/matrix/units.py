"""The runs that a leakage matrix is made of: a training or an audit each, in a folder of its own, done once."""

import json
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
import yaml
from torch import Tensor

from experiments.audit.command import audit_prepared, run_audit
from experiments.audit.images import choose_images, divide
from experiments.cli import call as cli
from experiments.cli.errors import ConfigFault, config_error, one_line
from experiments.cli.logs import quiet_libraries
from experiments.engine.choice import device_on
from experiments.engine.content import Content, first_other, of_other
from experiments.engine.folders import bits_of, first_difference, on_cpu, with_device
from experiments.engine.setup import Setup, prepare
from experiments.run.command import run_federated
from fedsim.data.copies import most_copies
from fedsim.errors import ConfigError, RunError
from fedsim.metrics.image import psnr
from fedsim.report.matrix.read import BASELINE, read_cells
from fedsim.settings.commands import AuditConfig, RunConfig
from fedsim.settings.composition import Config
from fedsim.settings.knowledge import without_knowledge
from fedsim.settings.schema import parse, plain
from fedsim.simulation.actor_pool import PooledWorker
from fedsim.simulation.ray_cluster import quiet_environment
from fedsim.simulation.shipping import absolute, absolute_checkpoints
from fedsim.storage.durable import write_whole
from fedsim.storage.json_objects import DamagedFileError, read_object
from fedsim.storage.run_folder import RunFolder
from fedsim.storage.sealed import VERSIONS

TRAINING, AUDIT = "training", "audit"

SEAL, ASKED = "sealed.json", "asked.json"
"""A sealed folder holds a finished run; what was asked for stands there from the start."""

SUMMARY = "summary.json"
"""What a run writes as it ends."""

TRACEBACK = "traceback.txt"
"""Of the fault that ended a run, in its folder."""

RESUMED = ("resume", "resume_every_seconds")
WITHOUT_EFFECT = ("run_dir", "simulation", "ray", "tracker", "attack", "round_timeout", *RESUMED)
"""On a training or an audit; of `simulation` some settings have one."""


@dataclass(frozen=True, eq=False)
class MatrixRun:
    """One run of the matrix.

    Attributes:
        kind: `TRAINING` or `AUDIT`.
        label: the training's seed, or the audit's state.
        content: what its results are of besides settings, as the matrix's own model and images tell it; empty: unknown.
        checkpoint: the training's, that the audit starts from.
    """

    row: str
    kind: str
    label: str
    folder: Path
    config: Config
    content: Content = field(default_factory=dict)
    checkpoint: Path | None = None

    @property
    def title(self) -> str:
        what = f"seed {self.label}" if self.kind == TRAINING else f"{self.label} model"
        return f"row {self.row} ({self.kind}, {what})"

    def __str__(self) -> str:
        return self.title

    def on(self, engine: str) -> Self:
        """The run on the engine that `auto` was found to stand for, or that was named, where its row names none."""
        own, asked = self.config["simulation"]["engine"], _read(self.folder / ASKED)
        chosen = engine if own == "auto" else own
        named = own != "auto" and not (asked and on_cpu(asked["settings"]))
        simulation, client = {**self.config["simulation"], "engine": chosen}, self.config["client"]
        device = device_on(chosen, client["device"], simulation["num_gpus"], named)
        client = {**client, "device": device}
        return replace(self, config={**self.config, "simulation": simulation, "client": client})

    @property
    def settings(self) -> Config:
        """What its results depend on, attacks aside; where the matrix's folder stands is no part of it."""
        plain: Config = json.loads(json.dumps({k: v for k, v in self.config.items() if k not in WITHOUT_EFFECT}))
        plain["simulation"] = bits_of(self.config["simulation"])
        if self.kind == AUDIT:
            plain["audit"].pop("victims")
        if self.checkpoint is not None:
            plain["model"]["checkpoint"] = self.checkpoint.name
        return plain


@dataclass(frozen=True)
class UnitEnd:
    """What became of a unit: `done`, `refused` for its settings, or `failed`."""

    status: str
    reason: str = ""
    seconds: float | None = None


def finished(unit: MatrixRun) -> UnitEnd | None:
    """How an earlier call ended the unit; None if it did not, or if attacks are new to it."""
    sealed = _read(unit.folder / SEAL)
    if sealed is None or not set(unit.config["attack"]) <= set(sealed["attacks"]):
        return None
    return UnitEnd("done", seconds=sealed["seconds"])


def check_unit(unit: MatrixRun) -> None:
    """Refuse a folder that holds the unit with other settings; a path and its absolute form, on a cluster, are one."""
    asked = _read(unit.folder / ASKED)
    if asked is None:
        return
    kept = unit.kind == AUDIT or (unit.folder / SEAL).exists()
    gpus = asked.get("gpus", _has_gpus(unit))  # earlier versions recorded none
    before, now = absolute(with_device(asked["settings"], unit.config, gpus)), absolute(unit.settings)
    differing = first_difference(before, now)
    if differing and kept:
        key, before, now = differing
        there = f"in this one {unit.row} was run with {key}={before}, not {now}"
        raise ConfigError("run_dir", unit.folder.parents[2], f"a new folder: {there}")
    if kept and (other := first_other(asked.get("content", {}), unit.content)):
        raise of_other(other, unit.folder.parents[2])
    for name, settings in unit.config["attack"].items():
        before, now = (without_knowledge(one) for one in (asked["attacks"].get(name, settings), settings))
        differing = first_difference(absolute_checkpoints(before), absolute_checkpoints(now))
        if differing:
            key, before, now = differing
            raise ConfigError(
                f"matrix.attacks.{name}", f"{key}={now}", f"another name: under this one {before} was measured"
            )


def _has_gpus(unit: MatrixRun) -> bool:
    """Whether workers ask for a share of a GPU; how large it is changes no result."""
    return bool(unit.config["simulation"]["num_gpus"])


def run_unit(unit: MatrixRun) -> UnitEnd:
    """Run it to its end, whatever that is, and seal its folder where nothing is left to do."""
    start = time.perf_counter()
    run: Callable[[MatrixRun], None] = _train if unit.kind == TRAINING else _audit
    try:
        run(unit)
    except ConfigFault as error:  # a defense's own refusal comes wrapped in Hydra's
        known = config_error(error)
        unread = known is not None and known.key in ("model.checkpoint", "run_dir")  # nothing about the row's settings
        return UnitEnd("failed" if unread else "refused", one_line(error, "matrix", []))
    except RunError as error:
        return UnitEnd("failed", str(error))
    except Exception as error:  # noqa: BLE001 - defenses are plug-ins: one that breaks must not take the others with it
        _write_text(unit.folder / TRACEBACK, traceback.format_exc())
        return UnitEnd("failed", f"{type(error).__name__}: {error}")
    # Of a training that went on, those before as well.
    trained = _read(unit.folder / SEAL) if unit.kind == TRAINING else None
    return UnitEnd("done", seconds=time.perf_counter() - start if trained is None else trained["seconds"])


class UnitWorker(PooledWorker):
    """Runs units in a process of its own, one after the other."""

    def __init__(self, threads: int) -> None:
        quiet_environment()
        quiet_libraries()
        torch.set_num_threads(threads)

    def run(self, unit: MatrixRun) -> UnitEnd:
        return run_unit(unit)


def updates_of(audit: MatrixRun) -> int | None:
    """How many updates the server sees in this audit; None before it has begun."""
    asked = _read(audit.folder / ASKED)
    return None if asked is None else int(asked["updates"])


def judges_updates(audit: MatrixRun) -> bool:
    """Whether a defense decides by the update if it is shared, and so by the batch; False before it has begun."""
    asked = _read(audit.folder / ASKED)
    return asked is not None and bool(asked.get("judged", False))


def copies_of(audit: MatrixRun) -> int | None:
    """Of the image that stands most often among the audited ones, how often; 0 before the audit has begun, None where
    an earlier version did not count.
    """
    asked = _read(audit.folder / ASKED)
    return 0 if asked is None else asked.get("copies")


def guess(setup: Setup) -> dict[str, float]:
    """What one reaches without any gradient: PSNR in dB of each audited picture against the mean of public pictures.

    Mid-grey where there are no public pictures.
    """
    chosen = setup.data.train.subset(choose_images(setup))
    pictures = chosen.images(range(len(chosen)))
    values: Tensor = psnr(setup.attacking(chosen).guess().expand_as(pictures), pictures)
    return dict(zip(chosen.ids, values.tolist(), strict=True))


@contextmanager
def quiet() -> Iterator[None]:
    """The runs' own lines and bars give way to the matrix's."""
    consoles = (cli.console, cli.errors)
    before = [console.quiet for console in consoles]
    try:
        for console in consoles:
            console.quiet = True
        yield
    finally:
        for console, was in zip(consoles, before, strict=True):
            console.quiet = was


def _train(unit: MatrixRun) -> None:
    """On from the last resume point of an earlier call with the same settings; from the start where there is none."""
    folder = unit.folder
    with quiet():
        if not (_can_go_on(unit) and _goes_on(unit)):
            shutil.rmtree(folder, ignore_errors=True)
            run_federated(unit.config | {"run_dir": str(folder)}, folder)
    asked = {"settings": unit.settings, "gpus": _has_gpus(unit), "attacks": {}, "content": unit.content}
    _write(unit.folder / ASKED, asked)
    _write(unit.folder / SEAL, {"attacks": [], "seconds": read_object(folder / SUMMARY)["seconds"]})


def _can_go_on(unit: MatrixRun) -> bool:
    """Whether a training with these settings was begun in the folder, by this version, and not ended.

    Of one that ended, unsealed, nothing tells which images it had.
    """
    manifests = map(_read, RunFolder(unit.folder).resume_points.glob("*/manifest.json"))
    other = any(one is not None and one.get("versions") != VERSIONS for one in manifests)
    if other or (unit.folder / SUMMARY).exists():
        return False
    recorded = _read_settings(unit.folder / "config.yaml")
    whole = plain(parse(RunConfig, unit.config | {"run_dir": str(unit.folder)}))  # as a run writes its settings there
    asked = replace(unit, config=whole).settings
    return recorded is not None and replace(unit, config=whole | recorded).settings == asked


def _goes_on(unit: MatrixRun) -> bool:
    """Train the rest; False where no resume point is whole, or of other content."""
    try:
        run_federated(unit.config | {"run_dir": str(unit.folder), "resume": str(unit.folder)}, unit.folder)
    except DamagedFileError:
        return False
    except ConfigError as error:
        if error.key != "resume":
            raise
        return False
    return True


def _read_settings(path: Path) -> Config | None:
    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None
    return found if isinstance(found, dict) else None


def _audit(unit: MatrixRun) -> None:
    """On from where an earlier call stopped; sealed unless an attack failed, which is then tried again."""
    folder, start = unit.folder, time.perf_counter()
    config = unit.config | {"run_dir": str(folder)}
    asked = _read(folder / ASKED)
    setup = None
    if asked is None:
        setup = prepare(config)
        chosen = choose_images(setup)
        updates = divide(chosen, config["audit"]["batch_size"], setup.sums)
        _write(folder / BASELINE, guess(setup))
        judged = any(defense.judges_updates for defense in setup.defenses.wrappers)
        asked = {"settings": unit.settings, "gpus": _has_gpus(unit), "attacks": {}}
        asked |= {"updates": len(updates), "judged": judged, "copies": most_copies(setup.data.train.subset(chosen))}
    content = {**asked.get("content", {}), **unit.content}  # attacks of earlier calls have files of their own
    _write(folder / ASKED, asked | {"attacks": asked["attacks"] | config["attack"], "content": content})
    recorded = folder / "config.yaml"
    if recorded.exists():  # with fewer attacks, or from where the matrix's folder stood before
        _write_text(recorded, yaml.safe_dump(json.loads(json.dumps(config)), sort_keys=False))
    with quiet():
        if setup is None:
            run_audit(config, folder)
        else:  # what is at hand is neither read nor built again
            parse(AuditConfig, config).check_audit()
            audit_prepared(setup, folder, start)
    cells = read_cells(folder, unit.label, list(config["attack"]), asked["updates"])
    if not any(cell.failed for cell in cells):
        sealed = _read(folder / SEAL) or {"attacks": [], "seconds": 0.0}
        attacks = sorted({*sealed["attacks"], *config["attack"]})
        _write(folder / SEAL, {"attacks": attacks, "seconds": sealed["seconds"] + time.perf_counter() - start})


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:  # a machine that lost power left an empty file
        return None
    return content


def _write(path: Path, content: Mapping[str, Any]) -> None:
    _write_text(path, json.dumps(content, indent=1))


def _write_text(path: Path, text: str) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode())
