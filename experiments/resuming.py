"""`fedsim resume=RUN`: settings from the run's own folder, and everything else as it was after a round."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from experiments.cli import console
from experiments.reporting import end_with_report
from experiments.setup import Setup
from fedsim.composition import Config
from fedsim.errors import ConfigError, nearest
from fedsim.tracking import RunFolder
from fedsim.tracking.sealed import SealedStates
from server.pending import PendingObservations
from server.results import has_pictures
from server.resume import ResumePoint, newest_point

LOCAL = (
    "resume_every_seconds",
    "simulation.engine",
    "simulation.workers",
    "simulation.num_cpus",
    "simulation.resources",
    "simulation.max_retries",
    "simulation.attack_workers",
    "simulation.attack_num_cpus",
    "simulation.attack_resources",
    "simulation.attack_retries",
    "simulation.attack_backlog",
)
"""What may be set anew for a resumed run, and all of `ray`: where and how fast it runs, not what comes out."""

NEEDED = ("num_rounds", "observe", "resume_every_seconds")
"""Settings that only federated runs have, and only since they can be resumed."""

STATES_IN_A_POINT = 4
"""The global state, and what a strategy may keep of its size: the weights before, momentum and variance."""


def read_resumed(arguments: Sequence[str]) -> tuple[Config, Path] | None:
    """The settings and the folder of the run that `resume=RUN` names, RUN in them; None where nothing is resumed.

    Raises:
        ConfigError: no such run, or settings beside it that a resumed run keeps.
    """
    named = [argument for argument in arguments if argument.lstrip("+").startswith("resume=")]  # as Hydra takes it
    chosen = named[-1].partition("=")[2] if named else "null"
    if chosen == "null":
        return None
    root = Path(chosen).expanduser()
    try:
        config = yaml.safe_load((root / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError("resume", root, f"the folder of an earlier run of fedsim ({_reason(error)})") from error
    if not isinstance(config, dict) or not set(NEEDED) <= set(config) or "matrix" in config:
        words = "a run of this fedsim with resume points; an audit or a matrix goes on by its own command and run_dir="
        raise ConfigError("resume", root, words)
    simulation = config.get("simulation") or {}
    engine = simulation.get("engine")
    for argument in arguments:
        if argument not in named:
            _override(config, argument)
    on_gpus = [key for key in ("num_gpus", "attack_num_gpus") if simulation.get(key)]
    if simulation.get("engine") != engine and on_gpus:
        words = f"{engine}, as the run began: with simulation.{on_gpus[0]} the other one computes elsewhere"
        raise ConfigError("simulation.engine", simulation["engine"], words)
    return {**config, "resume": str(root)}, root


def _reason(error: Exception) -> str:
    return "config.yaml is not there" if isinstance(error, FileNotFoundError) else "config.yaml cannot be read"


def _override(config: Config, argument: str) -> None:
    """Set what an argument says, in place."""
    kept = f"resume= alone: a resumed run keeps its settings; only {', '.join(LOCAL)} and ray.* may be others"
    if argument.startswith("-") or "=" not in argument:
        raise ConfigError("resume", argument, kept)
    override = OverridesParser.create().parse_overrides([argument])[0]
    key = override.key_or_group
    if not (key in LOCAL or key.startswith("ray.")) or override.is_sweep_override() or override.is_delete():
        raise ConfigError(key, argument.split("=", 1)[1], kept)
    *path, last = key.split(".")
    settings: Any = config
    for part in path:
        settings = settings.get(part) if isinstance(settings, dict) else None
    if not isinstance(settings, dict) or last not in settings:
        raise ConfigError(key, override.value(), f"a setting of this run.{nearest(last, settings or ())}")
    settings[last] = override.value()


def check_resume(config: Config, root: Path) -> None:
    """Raises ConfigError where `resume_every_seconds` is no number of seconds, or `resume` names another folder.

    Of a run that is resumed all settings are read from its folder; a `resume` from a YAML file has done nothing so far.
    """
    resume = config.get("resume")
    if resume is not None and Path(str(resume)).expanduser().resolve() != root.resolve():
        raise ConfigError("resume", resume, "null in a file: fedsim resume=RUN goes on with a run, on the command line")
    every = config.get("resume_every_seconds")
    if every is not None and (not isinstance(every, int | float) or isinstance(every, bool) or not every >= 0):
        raise ConfigError("resume_every_seconds", every, "a number of at least 0, or null for no resume points")


def finished(root: Path) -> bool:
    """Whether the run in this folder came to its end; then its report is built anew and printed."""
    if not (root / "summary.json").is_file():
        return False
    console.print("this run is finished", markup=False)
    folder = RunFolder(root)
    shutil.rmtree(folder.resume_points, ignore_errors=True)
    end_with_report(folder)
    return True


def go_back(folder: RunFolder, pending: PendingObservations, every: float | None) -> ResumePoint | None:
    """The newest whole resume point, with the folder's files as they were then, results of attacks aside.

    Those are kept: attacks that are made again would give the same. None where the run had not come so far: it begins
    anew.

    Raises:
        ConfigError: the folder has no point that could be used.
    """

    def say(text: str) -> None:
        console.print(text, markup=False)

    point = newest_point(SealedStates(folder.resume_points), say)
    if point is None and every is None:
        raise ConfigError("resume", folder.root, "a run with resume points; resume_every_seconds=null left none there")
    server_round = -1 if point is None else point.server_round
    for name in ("metrics", "timings"):
        folder.keep_rows(name, lambda row: row["round"] <= server_round)
    waiting = pending.names()
    folder.keep_rows(
        "attacks",
        lambda row: (row["round"] <= server_round and row["observation"] not in waiting) or has_pictures(folder, row),
    )
    say(
        "no resume point yet: the run begins anew"
        if point is None
        else f"goes on after round {server_round}; {sum(1 for _ in folder.rows('attacks'))} results of attacks are kept"
    )
    return point


def check_room(folder: RunFolder, setup: Setup) -> None:
    """Raises ConfigError where the disk has less room than one resume point, or one checkpoint, takes."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in setup.model.state_dict().values())
    if setup.config.get("resume_every_seconds") is None:
        folder.check_room(size, "a checkpoint")
    else:
        folder.check_room(STATES_IN_A_POINT * size, "a resume point")
