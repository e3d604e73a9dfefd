"""The folder of a run or an audit, and whether what an earlier call left there goes on."""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from experiments.engine.choice import Job
from fedsim.errors import ConfigError
from fedsim.settings.commands import AuditConfig, JobConfig
from fedsim.settings.composition import build_finetune
from fedsim.settings.knowledge import without_knowledge
from fedsim.settings.schema import plain
from fedsim.storage.run_folder import RunFolder
from server.attack_queue.results import has_images


def as_began(config: Job, root: Path) -> Job:
    """With the CPU for `client.device=auto` where an earlier call in this folder computed on it: there it goes on."""
    recorded = root / "config.yaml"
    if config.client.device != "auto" or config.simulation.num_gpus or not recorded.exists():
        return config
    began_on_cpu = on_cpu(_settings_of(recorded.read_text(encoding="utf-8"), root))
    return replace(config, client=replace(config.client, device="cpu")) if began_on_cpu else config


def on_cpu(settings: Mapping[str, Any]) -> bool:
    """Whether clients computed there, by what was recorded."""
    return bool((settings.get("client") or {}).get("device") == "cpu")


def open_or_resume(config: JobConfig, root: Path) -> RunFolder:
    """A new run folder, or the one of an earlier call with the same settings.

    Raises:
        ConfigError: the folder holds a run with other settings, or a matrix.
    """
    if (root / "matrix.json").exists():
        raise ConfigError("run_dir", root, fault="choose a new folder, this one holds a matrix")
    recorded = root / "config.yaml"
    before = recorded.read_text(encoding="utf-8") if recorded.exists() else None
    if before is None and (root / "attacks.jsonl").exists():
        raise ConfigError("run_dir", root, "a new folder; this one holds results without their settings")
    folder = open_folder(config, root, expected=before)
    folder.keep_rows("attacks", partial(has_images, folder))  # loss of power may have left empty ones
    return folder


def open_folder(config: JobConfig, root: Path, expected: str | None = None) -> RunFolder:
    """Create the run folder and write the resolved configuration into it.

    Args:
        expected: the configuration that an earlier call wrote there; None for a new folder.

    Raises:
        ConfigError: the earlier call had other settings, or what it wrote is damaged.
    """
    settings: dict[str, Any] = json.loads(json.dumps(plain(config)))
    there = settings if expected is None else with_device(_settings_of(expected, root), settings)
    if other := first_difference(comparable(there), comparable(settings)):
        key, before, now = other
        if isinstance(config, AuditConfig) and "observe" in there:
            raise ConfigError("run_dir", root, fault="choose a new folder, this one holds a federated run")
        differs = f"{key}={now} now, {before} there"
        raise ConfigError(
            "run_dir", root, fault=f"choose a new folder, this one holds a run with other settings: {differs}"
        )
    folder = RunFolder(root)
    folder.write_text("config.yaml", yaml.safe_dump(settings, sort_keys=False))
    return folder


def with_device(before: dict[str, Any], now: Mapping[str, Any], gpus: Any = None) -> dict[str, Any]:
    """`before` with the device of `now`: earlier versions recorded `auto` where clients had what their machine had.

    Args:
        gpus: that were asked for, where `before` does not say: there was one.
    """
    client, asked = before.get("client") or {}, (before.get("simulation") or {}).get("num_gpus", gpus)
    if client.get("device") != "auto":
        return before
    return {**before, "client": {**client, "device": "cuda" if asked else now["client"]["device"]}}


def first_difference(before: Any, now: Any, key: str = "") -> tuple[str, Any, Any] | None:
    """The first setting that differs: (dotted key, value before, value now)."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys([*before, *now]):
            found = first_difference(before.get(name), now.get(name), f"{key}.{name}" if key else str(name))
            if found:
                return found
        return None
    if isinstance(now, tuple):
        now = list(now)
    return None if before == now else (key, before, now)


def _settings_of(text: str, root: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError("run_dir", root, fault="choose a new folder, the config.yaml in this one is damaged")
    return found


def comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that results depend on."""
    config: dict[str, Any] = deepcopy(dict(settings))
    if isinstance(config.get("audit"), dict):  # how many updates an attack gets at once changes rounding alone
        config["audit"].pop("victims", None)
    if not config.get("bound"):  # folders of before there were any have no such key
        config.pop("bound", None)
    if build_finetune(config.get("finetune") or {}).whole:  # as with folders of before there was a choice
        config.pop("finetune", None)
    if (config.get("model") or {}).get("checkpoint_head") is True:  # as with folders of before there was a choice
        del config["model"]["checkpoint_head"]
    client = config.get("client") or {}
    if client.get("schedule", {}).get("shape") == "constant" and not client["schedule"].get("warmup"):
        del client["schedule"]  # the same as in folders of before there was one
    usual: dict[str, Any] = {"precision": "float32", "augment": [], "compile": False, "no_decay": False}
    usual |= {"max_grad_norm": None, "micro_batch_size": None}
    for key in usual.keys() & client.keys():
        if client[key] == usual[key]:
            del client[key]
    kept = {key: value for key, value in config.items() if key not in ("run_dir", "simulation", "ray", "tracker")}
    attacks = {name: without_knowledge(settings) for name, settings in (config.get("attack") or {}).items()}
    return kept | {"attack": attacks, "simulation": bits_of(config.get("simulation") or {})}


def bits_of(simulation: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the simulation that change the bits of results."""
    return {key: simulation[key] for key in ("threads", "worker_sums") if key in simulation}
