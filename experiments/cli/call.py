"""What the commands share: Hydra, one-line errors, exit codes."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn, TextIO

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from yaml import YAMLError

from experiments.cli.errors import ConfigFault, one_line, own_folder
from experiments.cli.launcher import SideBySide, register
from experiments.cli.logs import quiet_libraries
from experiments.cli.repeats import given_twice, refuse_repeats
from experiments.commands.catalogue import Catalogue
from experiments.commands.early import check_early, check_named
from experiments.commands.flags import HELP, flags_last, shows_only, words, wrong_flag, wrong_sweep
from experiments.commands.fresh import about_to_make, forget, remove_all_unused, remove_unused
from experiments.commands.help import answer
from experiments.commands.stage import CommandStage, shortest
from experiments.commands.table import COMMANDS, Command, Config
from fedsim.errors import ConfigError, RunError
from fedsim.memory.kept import keep_memory
from fedsim.settings.places import once_mended, unwritable, write_refused
from fedsim.settings.ray_address import quiet_environment
from fedsim.settings.schema import parse

console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def on_stderr() -> Iterator[None]:
    """In a Python session standard output is the caller's own; what the commands print there goes beside it."""
    before, console.stderr = console.stderr, True
    try:
        yield
    finally:
        console.stderr = before


def print_what_can_be(stream: TextIO) -> None:
    """A sign that the terminal's encoding lacks, as ≥ in Latin-1, is printed as `?` and ends no run."""
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="replace")


def say_doing(text: str) -> None:
    """What takes long now, for whoever waits: `reading data …` on standard error."""
    errors.print(f"{text} …", markup=False)


def run_command(stage: CommandStage) -> None:
    """Compose the configuration from the command line and do the command's work; exit with 2 on a faulty setting."""
    quiet_environment()
    keep_memory()
    quiet_libraries()
    print_what_can_be(sys.stdout)
    # Hydra then raises instead of printing its own summary of an error.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    # Attacks and defenses of the user's own, beside where the command is called; `python -m` does the same.
    sys.path.append(str(Path.cwd()))
    register()
    forget()
    sys.argv[1:] = flags_last(sys.argv[1:])
    failed_before = SideBySide.failed
    SideBySide.begin = stage.begin
    call = _Call(stage, COMMANDS[stage.name], sys.argv[1:])
    try:
        call.carry_out()
    except ConfigFault as error:
        _refuse(call.one_line(error))
    except (TypeError, ValueError, YAMLError) as error:
        if stage.folder is not None:
            raise
        # What Hydra says of a group's option that is no name, and PyYAML of an option's file.
        _refuse(call.one_line(error))
    except OSError as error:
        if stage.folder is not None:
            raise
        _refuse(str(ConfigError("run_dir", _refused(error), unwritable(error))))
    except KeyboardInterrupt:
        errors.print(stage.interrupted(), markup=False)
        sys.exit(130)
    finally:
        remove_all_unused()
    if call.faulty or SideBySide.failed > failed_before:
        sys.exit(2)


def _refused(error: OSError) -> object:
    """Where Hydra could not write: the run's folder, also where that is full and no file is named, or what else is."""
    folder = about_to_make()
    if folder is not None and (error.filename is None or folder in Path(error.filename).absolute().parents):
        return shortest(folder)
    return error.filename


class _Call:
    """One call of a command: its help, one run, or the runs of a sweep, some of which may be at fault."""

    def __init__(self, stage: CommandStage, command: Command, arguments: list[str]) -> None:
        self._stage, self._command, self._arguments = stage, command, arguments
        self.faulty = False
        stage.resumes, stage.discard = command.resumes, remove_all_unused

    def carry_out(self) -> None:
        if fault := wrong_flag(self._arguments) or wrong_sweep(self._arguments):
            _refuse(fault)
        if shows_only(self._arguments):
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `--info | head` ends as any other command's output does
        if set(self._arguments) & set(HELP):
            if "all" not in words(self._arguments):
                self._help()
                return
            sys.argv.remove("all")  # Hydra's own help
        given = self._command.read(self._arguments)
        if given is not None:
            self._attempt(lambda: given[0], given[1])
            return

        @hydra.main(config_path="pkg://conf", config_name=self._command.config, version_base=None)
        def job(config: DictConfig) -> None:
            self._job(config)

        job()

    def one_line(self, error: BaseException) -> str:
        return one_line(error, self._command.config, self._arguments)

    def _job(self, config: DictConfig) -> None:
        chosen, sweep = HydraConfig.get(), None
        if chosen.mode == RunMode.MULTIRUN:
            console.print(f"#{chosen.job.num} {' '.join(chosen.overrides.task)}", markup=False)
            sweep = Path(chosen.sweep.dir) if self._command.resumes else None  # else its runs go on one by one

        def settings() -> Config:
            refuse_repeats(chosen.overrides.task)
            for said in given_twice(chosen.overrides.task):
                errors.print(said, markup=False)
            return resolved(config)

        self._attempt(settings, Path(chosen.runtime.output_dir), sweep)

    def _attempt(self, settings: Callable[[], Config], folder: Path, whole: Path | None = None) -> None:
        """Check the settings, import the libraries, do the work. A faulty run of a sweep does not end the others."""
        stage, root = self._stage, shortest(folder)
        stage.reach(whole or folder, partial(remove_unused, folder))
        try:
            config = parse(self._command.kind, settings())
            check_early(config, root)
            if "torch" not in sys.modules:
                say_doing("loading PyTorch, timm and Flower")
            check_named(config)
            task = self._command.load()
            quiet_libraries()  # Flower's logger came with it
            stage.begin(whole or folder)
            task(config, root)
        except (RunError, *ConfigFault) as error:
            self.faulty = True
            fault = str(error) if isinstance(error, RunError) else self.one_line(error)
            errors.print(f"error: {fault}", markup=False)
            stage.discard()
        except OSError as error:
            fault = write_refused(error, root)
            if not fault:
                raise
            self.faulty = True
            kept = (
                ("what had finished is kept", "goes on")
                if stage.keeps(root)
                else ("nothing is kept yet", "begins anew")
            )
            goes_on = f"; {kept[0]}. {once_mended(error)}, the same command with run_dir={root} {kept[1]}"
            errors.print(f"error: {fault}{goes_on if self._command.resumes else ''}", markup=False)
        except KeyboardInterrupt:
            stage.discard()
            raise

    def _help(self) -> None:
        asked = words(self._arguments)
        own = [word for word in asked if word.startswith("hydra.searchpath=")]
        catalogue = Catalogue(self._command.config, [*own_folder(self._arguments), *own])
        text, fault = answer(self._command.name, catalogue, [word for word in asked if word not in own])
        if fault:
            _refuse(fault)
        console.print(text, markup=False)


def _refuse(fault: str) -> NoReturn:
    errors.print(f"error: {fault}", markup=False)
    sys.exit(2)


def resolved(config: DictConfig) -> Config:
    """As plain containers."""
    plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}
