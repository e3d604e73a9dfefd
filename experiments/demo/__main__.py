"""`python -m experiments.demo FOLDER [OVERRIDE …]`, as `make demo` calls it."""

from experiments.commands import start
from experiments.commands.stage import CommandStage


def work(stage: CommandStage) -> None:
    """What takes seconds to import comes when Ctrl-C is watched for."""
    from experiments.demo.command import main

    main(stage)


if __name__ == "__main__":
    start("make demo", work)
