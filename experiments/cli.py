"""What both commands share: Hydra, one-line errors, exit codes."""

import os
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from experiments.errors import ConfigFault, one_line
from experiments.launcher import SideBySide, register
from experiments.logs import silence_libraries
from fedsim.errors import RunError
from fedsim.kept_memory import keep_memory
from fedsim.simulation.ray_cluster import quiet_environment

console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)

Task = Callable[[dict[str, Any], Path], None]
Read = Callable[[Sequence[str]], tuple[dict[str, Any], Path] | None]
"""Settings and folder from the arguments; None where Hydra is to compose them."""


def print_what_can_be(stream: TextIO) -> None:
    """A sign that the terminal's encoding lacks, as ≥ in Latin-1, is printed as `?` and ends no run."""
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="replace")


def run_cli(config_name: str, task: Task, read: Read = lambda _: None) -> None:
    """Compose the configuration from the command line, run `task`, and exit with 2 on a faulty setting.

    Args:
        read: asked first; what it gives is run without Hydra.
    """
    quiet_environment()
    keep_memory()
    silence_libraries()
    print_what_can_be(sys.stdout)
    # Hydra then raises instead of printing its own summary of an error.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    arguments = sys.argv[1:]
    # Attacks and defenses of the user's own, beside where the command is called; `python -m` does the same.
    sys.path.append(str(Path.cwd()))
    register()
    faults: list[str] = []
    failed_before = SideBySide.failed
    started = False
    folder: Path | None = None

    def attempt(settings: Callable[[], dict[str, Any]], output: Path) -> None:
        nonlocal started, folder
        started, folder = True, output
        try:
            task(settings(), _relative(output))
        except RunError as error:
            faults.append(str(error))
            errors.print(f"error: {error}", markup=False)
        except ConfigFault as error:
            # One faulty setting of a sweep must not take the other runs with it.
            faults.append(one_line(error, config_name, arguments))
            errors.print(f"error: {faults[-1]}", markup=False)

    @hydra.main(config_path="pkg://conf", config_name=config_name, version_base=None)
    def job(config: DictConfig) -> None:
        attempt(lambda: _resolved(config), Path(HydraConfig.get().runtime.output_dir))

    try:
        given = read(arguments)
        if given is None:
            job()
        else:
            attempt(lambda: given[0], given[1])
    except ConfigFault as error:
        errors.print(f"error: {one_line(error, config_name, arguments)}", markup=False)
        sys.exit(2)
    except (TypeError, ValueError) as error:
        if started:
            raise
        # What Hydra says of a group's option that is no name.
        errors.print(f"error: {one_line(error, config_name, arguments)}", markup=False)
        sys.exit(2)
    except OSError as error:
        if started:
            raise
        errors.print(
            f"error: run_dir={error.filename}: a folder that can be written to ({error.strerror})", markup=False
        )
        sys.exit(2)
    except KeyboardInterrupt:
        errors.print(_interrupted(config_name, folder), markup=False)
        sys.exit(130)
    if faults or SideBySide.failed > failed_before:
        sys.exit(2)


def _resolved(config: DictConfig) -> dict[str, Any]:
    resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def _interrupted(config_name: str, folder: Path | None) -> str:
    if folder is None:
        return "interrupted before anything started"
    kept = f"interrupted: what had finished is in {_relative(folder)}"
    return kept + "; the same command with run_dir=THAT_FOLDER goes on there" * (config_name in ("audit", "prior"))


def _relative(path: Path) -> Path:
    """The path as seen from here, where that is shorter."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
