"""The options of a study, read before anything heavy is imported."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Protocol, TypeVar

from experiments.commands import start
from experiments.commands.stage import STUDY, CommandStage
from fedsim.errors import ConfigError

SCALES = ("small", "paper")


class Named(Protocol):
    """Anything with a name."""

    @property
    def name(self) -> str: ...


Listed = TypeVar("Listed", bound=Named)


def parser(doc: str | None, pictures: str | None = None, seeds: bool = True) -> argparse.ArgumentParser:
    """The options that all studies have.

    Args:
        pictures: what `--pictures` has to be; None: the study needs none.
        seeds: it is repeated for several seeds.
    """
    options = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if pictures is not None:
        options.add_argument("--pictures", type=folder, required=True, help=pictures)
    options.add_argument("--out", type=Path, required=True, help="folder for the page, its tables and figures, results")
    options.add_argument(
        "--scale", choices=SCALES, default="small", help="small: for two CPU cores; paper: the full protocol"
    )
    options.add_argument("--seed", type=int, default=0, help="the first of the seeds" if seeds else "of all draws")
    if seeds:
        options.add_argument("--seeds", type=int, help="how many; default: that of the scale")
    options.add_argument("--threads", type=int, default=1, help="of torch, in each process")
    options.add_argument("--workers", type=int, help="processes; default: the CPU cores, or 1 with --device cuda")
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return options


def folder(text: str) -> Path:
    """A path of the command line."""
    return Path(text).expanduser()


def parsed(options: argparse.ArgumentParser) -> argparse.Namespace:
    """The options of the command line; `--help` and a mistake end here."""
    spec = sys.modules["__main__"].__spec__
    if spec is not None:
        options.prog = f"python -m {spec.name.removesuffix('.__main__')}"
    return options.parse_args()


def matching(option: str, known: Sequence[Listed], globs: Sequence[str] | None) -> list[Listed]:
    """Those whose name matches one of the globs; all without any.

    Raises:
        ConfigError: a glob matches none.
    """
    names = set(matching_names(option, [one.name for one in known], globs))
    return [one for one in known if one.name in names]


def matching_names(option: str, known: Iterable[str], globs: Sequence[str] | None) -> list[str]:
    """Names that match one of the globs, in the order in which they are known; all without any.

    Raises:
        ConfigError: a glob matches none.
    """
    names = list(dict.fromkeys(known))
    if globs is None:
        return names
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in names):
            raise ConfigError(option, glob, f"globs on {', '.join(names)}")
    return [name for name in names if any(fnmatchcase(name, glob) for glob in globs)]


def begin(package: str, module: str = "study") -> None:
    """A command that is a package, with `arguments` in its `options` and `run` in this module.

    What is heavy is imported once the command line is known to be right, and Ctrl-C is watched for.
    """
    options = parsed(import_module(f"{package}.options").arguments())

    def work(stage: CommandStage) -> None:
        run = import_module(f"{package}.{module}").run
        call = import_module("experiments.studies.harness.command").call
        stage.begin(Path(getattr(options, "out", None) or "."))
        call(run, options)

    start(STUDY, work)
