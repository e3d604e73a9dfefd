"""What a driver sends to the nodes of a cluster, so that all of them run its code: a Ray `runtime_env`."""

import importlib.util
import json
import os
import site
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedsim.memory.kept import KEPT_MEMORY

PACKAGES = ("fedsim", "clients", "server", "attacks", "defenses", "experiments", "conf")

EXCLUDED = ("/runs", "/multirun", "/outputs", "/data", "/dist", "/build", "/docs", ".*_cache", "*.egg-info", "*.whl")
"""In a checkout, besides what its .gitignore names, and .git, .venv, venv and __pycache__, which Ray leaves out."""

JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Set by `ray job submit` in the environment of the entrypoint."""


def runtime_env(root: Path, config: Mapping[str, Any], kept_back: Iterable[Path] = ()) -> dict[str, Any]:
    """The code at `root`: the working directory of the workers for a checkout, modules for an installed wheel.

    Attacks and defenses of the user's own that the configuration names travel too, where they are neither installed
    nor in the checkout. A job that brings its own working directory (`ray job submit --working-dir`) keeps it.

    Args:
        root: the folder that holds the packages.
        kept_back: folders, such as pictures and runs, that never travel.
    """
    # These go before a node's own; Ray knows no default for a variable, so the driver's environment decides.
    settled = {"TOKENIZERS_PARALLELISM": "false", "FLWR_TELEMETRY_ENABLED": "0"} | KEPT_MEMORY
    job = _job_environment()  # Ray joins it with what the driver asks for, and refuses what stands in both
    variables = {name: os.environ.get(name, value) for name, value in settled.items()}
    ours = {name: value for name, value in variables.items() if name not in (job.get("env_vars") or {})}
    environment: dict[str, Any] = {"env_vars": ours}
    if job.get("working_dir") or job.get("py_modules"):
        return environment
    own = [str(path) for path in _plug_ins(root, config)]
    if (root / "pyproject.toml").is_file():
        inside = [path.resolve() for path in kept_back if path.resolve().is_relative_to(root.resolve())]
        kept = [f"/{path.relative_to(root.resolve()).as_posix()}" for path in inside if path != root.resolve()]
        environment |= {"working_dir": str(root), "excludes": [*EXCLUDED, *kept]}
    else:
        own = [*(str(root / name) for name in PACKAGES), *own]
    return environment | ({"py_modules": own} if own else {})


def absolute(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration for workers of a cluster, whose working directory is another: local paths made absolute."""
    data = dict(config["data"])
    for key in ("path", "name", "cache_dir"):
        value = data.get(key)
        if isinstance(value, str) and (key != "name" or Path(value).expanduser().is_dir()):
            data[key] = str(Path(value).expanduser().absolute())
    parts = {key: absolute_checkpoints(config[key]) for key in ("model", "attack", "defense") if key in config}
    return {**config, **parts, "data": data}


def absolute_checkpoints(settings: Any) -> Any:
    """Files that a `checkpoint` names, at any depth, by their absolute paths; what is no file here stays as it is."""
    if isinstance(settings, list):
        return [absolute_checkpoints(value) for value in settings]
    if not isinstance(settings, Mapping):
        return settings
    known = {key: absolute_checkpoints(value) for key, value in settings.items()}
    path = known.get("checkpoint")
    if isinstance(path, str) and Path(path).expanduser().is_file():
        known["checkpoint"] = str(Path(path).expanduser().absolute())
    return known


def _job_environment() -> dict[str, Any]:
    """The `runtime_env` that the job came with."""
    environment: dict[str, Any] = json.loads(os.environ.get(JOB, "{}")).get("runtime_env") or {}
    return environment


def _plug_ins(root: Path, config: Mapping[str, Any]) -> list[Path]:
    """Modules of `_target_`s that other nodes cannot have."""
    installed = [Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib")), root]
    installed += [Path(sysconfig.get_path("platlib")), *(Path(folder) for folder in site.getsitepackages())]
    found: dict[Path, None] = {}
    for name in sorted({target.split(".", 1)[0] for target in _targets(config)} - set(PACKAGES)):
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        if spec is None or not (spec.submodule_search_locations or spec.origin):
            continue
        locations = spec.submodule_search_locations
        path = Path(next(iter(locations)) if locations else str(spec.origin)).resolve()
        if path.exists() and not any(path.is_relative_to(folder.resolve()) for folder in installed):
            found[path] = None
    return list(found)


def _targets(settings: Any) -> Iterator[str]:
    if isinstance(settings, Mapping):
        if isinstance(settings.get("_target_"), str):
            yield settings["_target_"]
        for value in settings.values():
            yield from _targets(value)
    elif isinstance(settings, list):
        for value in settings:
            yield from _targets(value)
