"""The options of a study, read before anything heavy is imported."""

import argparse
import sys
from importlib import import_module
from pathlib import Path

from experiments.commands import start
from experiments.commands.stage import STUDY, CommandStage

SCALES = ("small", "paper")


def parser(doc: str | None, pictures: str | None = None) -> argparse.ArgumentParser:
    """The options that all studies have.

    Args:
        pictures: what `--pictures` has to be; None: the study needs none.
    """
    found = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if pictures is not None:
        found.add_argument("--pictures", type=folder, required=True, help=pictures)
    found.add_argument("--out", type=Path, required=True, help="folder for the page, its tables and figures, results")
    found.add_argument(
        "--scale", choices=SCALES, default="small", help="small: for two CPU cores; paper: the full protocol"
    )
    found.add_argument("--seed", type=int, default=0, help="the first of the seeds")
    found.add_argument("--seeds", type=int, help="how many; default: that of the scale")
    found.add_argument("--threads", type=int, default=1, help="of torch, in each process")
    found.add_argument("--workers", type=int, help="processes; default: the CPU cores, or 1 with --device cuda")
    found.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return found


def folder(text: str) -> Path:
    """A path of the command line."""
    return Path(text).expanduser()


def parsed(found: argparse.ArgumentParser) -> argparse.Namespace:
    """The options of the command line; `--help` and a mistake end here."""
    spec = sys.modules["__main__"].__spec__
    if spec is not None:
        found.prog = f"python -m {spec.name.removesuffix('.__main__')}"
    return found.parse_args()


def begin(found: argparse.ArgumentParser, module: str) -> None:
    """The module's `main`, which is imported once the command line is known to be right, and Ctrl-C is watched for."""
    out = getattr(parsed(found), "out", None)

    def work(stage: CommandStage) -> None:
        print("loading PyTorch, timm and Flower …", file=sys.stderr, flush=True)
        study = import_module(module)
        stage.begin(Path(out or "."))
        study.main()

    start(STUDY, work)
