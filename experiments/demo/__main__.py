"""`python -m experiments.demo FOLDER [OVERRIDE …]`, as `make demo` calls it."""

import sys

from experiments.commands import start
from experiments.commands.stage import CommandStage


def work(stage: CommandStage) -> None:
    """What takes seconds to import comes when Ctrl-C is watched for, and is said before."""
    print("loading PyTorch, timm and Flower …", file=sys.stderr, flush=True)
    from experiments.demo.command import main

    main(stage)


if __name__ == "__main__":
    start("make demo", work)
