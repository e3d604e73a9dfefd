"""What the commands share: Hydra, one-line errors, exit codes."""

import os
import sys
from collections.abc import Callable
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn, TextIO

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from experiments.commands.catalogue import Catalogue
from experiments.commands.flags import HELP, words, wrong_flag
from experiments.commands.fresh import forget, remove_all_unused, remove_unused
from experiments.commands.help import answer
from experiments.commands.stage import Stage, shortest
from experiments.commands.table import COMMANDS, Command
from experiments.errors import ConfigFault, one_line, own_folder
from experiments.launcher import SideBySide, register
from experiments.logs import silence_libraries
from fedsim.errors import RunError
from fedsim.kept_memory import keep_memory
from fedsim.ray_settings import quiet_environment

console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def print_what_can_be(stream: TextIO) -> None:
    """A sign that the terminal's encoding lacks, as ≥ in Latin-1, is printed as `?` and ends no run."""
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="replace")


def say_doing(text: str) -> None:
    """What takes long now, for whoever waits: `reading data …` on standard error."""
    errors.print(f"{text} …", markup=False)


def run_command(stage: Stage) -> None:
    """Compose the configuration from the command line and do the command's work; exit with 2 on a faulty setting."""
    command = COMMANDS[stage.name]
    stage.resumes = command.resumes
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
    SideBySide.begin = stage.begin
    forget()
    stage.discard = remove_all_unused

    def attempt(settings: Callable[[], dict[str, Any]], folder: Path, whole: Path | None = None) -> None:
        stage.reach(whole or folder, partial(remove_unused, folder))
        try:
            config, root = settings(), shortest(folder)
            command.check(config, root)
            if "torch" not in sys.modules:
                say_doing("loading PyTorch, timm and Flower")
            task = command.load()
            silence_libraries()  # Flower's logger came with it
            stage.begin(stage.folder or folder)
            task(config, root)
        except RunError as error:
            faults.append(str(error))
            errors.print(f"error: {error}", markup=False)
        except ConfigFault as error:
            # One faulty setting of a sweep must not take the other runs with it.
            faults.append(one_line(error, command.config, arguments))
            errors.print(f"error: {faults[-1]}", markup=False)
            stage.discard()
        except KeyboardInterrupt:
            stage.discard()
            raise

    @hydra.main(config_path="pkg://conf", config_name=command.config, version_base=None)
    def job(config: DictConfig) -> None:
        chosen, sweep = HydraConfig.get(), None
        if chosen.mode == RunMode.MULTIRUN:
            console.print(f"#{chosen.job.num} {' '.join(chosen.overrides.task)}", markup=False)
            sweep = Path(chosen.sweep.dir) if command.resumes else None  # else its runs go on one by one
        attempt(lambda: _resolved(config), Path(chosen.runtime.output_dir), sweep)

    try:
        if fault := wrong_flag(arguments):
            _refuse(fault)
        if set(arguments) & set(HELP):
            if "all" not in words(arguments):
                _help(command, arguments)
                return
            sys.argv.remove("all")  # Hydra's own help
        given = command.read(arguments)
        if given is None:
            job()
        else:
            attempt(lambda: given[0], given[1])
    except ConfigFault as error:
        _refuse(one_line(error, command.config, arguments))
    except (TypeError, ValueError) as error:
        if stage.folder is not None:
            raise
        # What Hydra says of a group's option that is no name.
        _refuse(one_line(error, command.config, arguments))
    except OSError as error:
        if stage.folder is not None:
            raise
        _refuse(f"run_dir={error.filename}: a folder that can be written to ({error.strerror})")
    except KeyboardInterrupt:
        errors.print(stage.interrupted(), markup=False)
        sys.exit(130)
    finally:
        remove_all_unused()
    if faults or SideBySide.failed > failed_before:
        sys.exit(2)


def _refuse(fault: str) -> NoReturn:
    errors.print(f"error: {fault}", markup=False)
    sys.exit(2)


def _help(command: Command, arguments: list[str]) -> None:
    asked = words(arguments)
    own = [*own_folder(arguments), *(word for word in asked if word.startswith("hydra.searchpath="))]
    text, fault = answer(command.name, Catalogue(command.config, own), [word for word in asked if word not in own])
    if fault:
        _refuse(fault)
    console.print(text, markup=False)


def _resolved(config: DictConfig) -> dict[str, Any]:
    resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}
