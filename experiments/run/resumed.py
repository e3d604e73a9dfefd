"""`resume=RUN` on the command line: the settings of the run in that folder, and what may be set anew."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from experiments.engine.ray_only import KEYS
from fedsim.errors import ConfigError, nearest
from fedsim.settings.commands import RunConfig
from fedsim.settings.groups import usual_simulation

Config = dict[str, Any]

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

CONFIG_DIR = ("--config-dir", "-cd")
"""Hydra's flag for a folder of options."""

NEEDED = ("num_rounds", "observe", "resume_every_seconds")
"""Settings that only federated runs have, and only since they can be resumed."""


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
    for argument in _without_config_dir(arguments):
        if argument not in named:
            _override(config, argument)
    stays = any(argument.lstrip("+").startswith("simulation.engine=") for argument in arguments)
    if engine == "inline" and not stays and any(_asks_for_ray(config, argument) for argument in arguments):
        simulation["engine"] = "ray"
    if simulation.get("engine") != engine and (key := _of_gpus(config)):
        words = f"{engine}, as the run began: with {key} the other one computes elsewhere"
        raise ConfigError("simulation.engine", simulation["engine"], words)
    return {**config, "resume": str(root)}, root


def _asks_for_ray(config: Config, argument: str) -> bool:
    """Whether it is a setting that only Ray's workers can serve, as `simulation=auto` takes it in a first call."""
    group, _, rest = argument.lstrip("+").partition("=")[0].partition(".")
    if group == "ray":
        return rest == "address" and config["ray"]["address"] is not None
    key = rest.partition(".")[0]
    return group == "simulation" and key in KEYS and config["simulation"][key] != usual_simulation()[key]


def _of_gpus(config: Config) -> str | None:
    """The first setting by which clients or attacks of one engine have a GPU."""
    simulation, device = config.get("simulation") or {}, (config.get("client") or {}).get("device")
    crews = simulation.get("attack_crews") or {}
    asked = {key: simulation.get(key) for key in ("num_gpus", "attack_num_gpus")}
    asked |= {f"attack_crews.{name}.num_gpus": crew.get("num_gpus") for name, crew in crews.items()}
    if key := next((key for key, gpus in asked.items() if gpus), None):
        return f"simulation.{key}"
    return f"client.device={device}" if device == "cuda" or (device == "auto" and _has_cuda()) else None


def _has_cuda() -> bool:
    import torch  # takes a second, and few resumed runs ask

    return torch.cuda.is_available()


def _without_config_dir(arguments: Sequence[str]) -> list[str]:
    """Where options of a plug-in stand is of no matter: a resumed run has its settings in its folder."""
    kept, words = list[str](), iter(arguments)
    for word in words:
        if word in CONFIG_DIR:
            next(words, None)
        elif not word.startswith(tuple(f"{flag}=" for flag in CONFIG_DIR)):
            kept.append(word)
    return kept


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


def check_resume(config: RunConfig, root: Path) -> None:
    """Raises ConfigError where `resume` names another folder.

    Of a run that is resumed all settings are read from its folder; a `resume` from a YAML file has done nothing so far.
    """
    resume = config.resume
    if resume is not None and Path(str(resume)).expanduser().resolve() != root.resolve():
        raise ConfigError("resume", resume, "null in a file: fedsim resume=RUN goes on with a run, on the command line")
