"""The six commands: what each is called, what it is for, and the function that does its work."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments.run.resumed import read_resumed
from fedsim.settings.commands import AuditConfig, JobConfig, MatrixConfig, MeasureConfig, PriorConfig, RunConfig

Config = dict[str, Any]
Read = Callable[[Sequence[str]], tuple[Config, Path] | None]


def _nothing_read(arguments: Sequence[str]) -> None:
    """Hydra is to compose the settings."""


@dataclass(frozen=True)
class Command:
    """A command whose settings Hydra composes.

    Attributes:
        config: the name of its main configuration, `conf/CONFIG.yaml`.
        task: module and function that do its work; imported once the settings are known to be right.
        kind: of its settings, once they are parsed.
        read: asked first; what it gives is run without Hydra.
        resumes: the same call on the same folder goes on where it stopped.
    """

    name: str
    config: str
    task: str
    kind: type[JobConfig | MeasureConfig]
    read: Read = _nothing_read
    resumes: bool = False

    def load(self) -> Callable[[Any, Path], None]:
        """The function that does its work."""
        module, _, function = self.task.partition(":")
        task: Callable[[Any, Path], None] = getattr(import_module(module), function)
        return task


COMMANDS = {
    command.name: command
    for command in (
        Command("fedsim", "config", "experiments.run.command:run_federated", RunConfig, read_resumed),
        Command("fedsim-audit", "audit", "experiments.audit.command:run_audit", AuditConfig, resumes=True),
        Command("fedsim-measure", "measure", "experiments.measure.command:run_measure", MeasureConfig),
        Command("fedsim-matrix", "matrix", "experiments.matrix.command:run_matrix", MatrixConfig, resumes=True),
        Command("fedsim-prior", "prior", "experiments.prior.command:run_prior", PriorConfig, resumes=True),
    )
}
