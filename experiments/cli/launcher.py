"""`hydra/launcher=side_by_side`: the runs of a sweep at the same time, their workers on one Ray."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig
from rich.console import Console

from experiments.cli.machine import cores
from fedsim.errors import ConfigError
from fedsim.settings.ray_address import check_address

PLUGIN = "hydra_plugins.fedsim.SideBySide"
"""Hydra takes launchers by such names only; there is no module behind it."""

COMMANDS = {"config": "fedsim", "audit": "fedsim-audit"}
"""What a run of a sweep calls, by the name of the main configuration."""

OF_A_SWEEP = ("launcher", "sweeper", "sweep", "run", "mode", "job", "runtime")
"""What Hydra's settings say of the sweep, or of one run's folder, which the launcher sets."""

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_TO_END = 60.0
"""For runs that were interrupted; then they are killed."""

console = Console(highlight=False, soft_wrap=True)


@dataclass
class _StartedRun:
    number: int
    folder: Path
    process: subprocess.Popen[bytes]
    output: IO[bytes]


class SideBySide(Launcher):
    """Starts `fedsim` once for each run of the sweep, `at_once` at a time.

    Each run is a Ray job of its own: what one does, or how it ends, is nothing to the others. Without `ray.address`
    they share a Ray that lives as long as the sweep.

    Attributes:
        failed: how many runs of this process's sweeps did not end well.
        begin: told the sweep's folder when its first run is about to start.
    """

    failed: ClassVar[int] = 0
    begin: ClassVar[Callable[[Path], None]] = lambda _: None

    def __init__(self, at_once: int = 2) -> None:
        super().__init__()
        self.at_once = at_once

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Raises ConfigError before anything starts where the runs could not share a Ray."""
        self._check(job_overrides)
        root = Path(str(self.config.hydra.sweep.dir))
        type(self).begin(root)
        waiting = [(initial_job_idx + index, list(overrides)) for index, overrides in enumerate(job_overrides)]
        ends: dict[int, JobReturn] = {}
        running: list[_StartedRun] = []
        with self._shared_ray() as address:
            try:
                while waiting or running:
                    while waiting and len(running) < self.at_once:
                        number, overrides = waiting.pop(0)
                        running.append(self._start(number, root / str(number), overrides, address))
                        ends[number] = JobReturn(overrides=overrides, working_dir=str(root / str(number)))
                    time.sleep(SECONDS_BETWEEN_LOOKS)
                    for run in [run for run in running if run.process.poll() is not None]:
                        running.remove(run)
                        _end(run, ends[run.number])
            finally:
                _interrupt(running)
        return [ends[number] for number in sorted(ends)]

    def _check(self, job_overrides: Sequence[Sequence[str]]) -> None:
        if isinstance(self.at_once, bool) or not isinstance(self.at_once, int) or self.at_once < 1:
            raise ConfigError("hydra.launcher.at_once", self.at_once, "a whole number of at least 1")
        name = self.config.hydra.job.config_name
        if name not in COMMANDS:
            raise ConfigError("hydra/launcher", "side_by_side", "basic: only fedsim and fedsim-audit run side by side")
        check_address(self.config.ray.address)
        workers = [word for words in job_overrides for word in words if word.startswith("simulation.workers=")]
        everywhere = len(workers) == len(job_overrides) and "simulation.workers=auto" not in workers
        if self._on_ray and self.at_once > 1 and self.config.simulation.workers == "auto" and not everywhere:
            expected = f"a number: {self.at_once} runs at a time share the cores, and auto takes all of them for one"
            raise ConfigError("simulation.workers", "auto", expected)

    @property
    def _on_ray(self) -> bool:
        return bool(self.config.simulation.engine != "inline")

    @contextmanager
    def _shared_ray(self) -> Iterator[str | None]:
        """The address for all runs; a Ray of this sweep's own where none is configured."""
        if self.config.ray.address is not None or not self._on_ray:
            yield self.config.ray.address
            return
        from fedsim.simulation.ray_cluster import ray_cluster

        with ray_cluster(None, cores(), _gpus(), self.config.ray.dashboard):
            import ray

            yield ray.get_runtime_context().gcs_address

    def _start(self, number: int, folder: Path, overrides: list[str], address: str | None) -> _StartedRun:
        hydra = self.config.hydra
        folders = [source.path for source in hydra.runtime.config_sources if source.provider == "command-line"]
        command = [sys.executable, "-P", "-m", "experiments.commands", COMMANDS[hydra.job.config_name], *overrides]
        command += [word for path in folders for word in ("--config-dir", str(path))]
        command += _kept(hydra.overrides.hydra)
        command += [f"run_dir='{folder}'"] + ([] if address is None else [f"ray.address='{address}'"])
        if address is not None and self.config.ray.address is None:
            command.append("ray.grows=false")
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the run has ended
        checkout = str(Path(__file__).parents[2])
        path = os.pathsep.join([checkout, *filter(None, [os.environ.get("PYTHONPATH")])])
        # A session of its own: Ctrl-C reaches this process alone, which then ends its runs one by one.
        process = subprocess.Popen(  # noqa: S603 - this Python, with the words of this command
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        console.print(f"#{number} {' '.join(overrides)}", markup=False)
        return _StartedRun(number, folder, process, output)


def register() -> None:
    """Let Hydra find the launcher that `conf/hydra/launcher` names."""
    Plugins.instance().class_name_to_class[PLUGIN] = SideBySide


def _kept(overrides: Sequence[str]) -> list[str]:
    """Of the sweep's own words about Hydra those that a single run needs too, as where to look for options."""
    keys = [(word, re.split("[=.@/]", word.lstrip("+~"))) for word in overrides]
    return [word for word, key in keys if key[0] == "hydra" and key[1] not in OF_A_SWEEP]


def _end(run: _StartedRun, end: JobReturn) -> None:
    run.output.seek(0)
    text = run.output.read().decode(errors="replace").strip()
    run.output.close()
    code = run.process.returncode
    # Failures are counted, not raised: Hydra would drop the page that compares the others.
    end.status, end.return_value = JobStatus.COMPLETED, code
    if code == 0:
        console.print(f"#{run.number} {run.folder}", markup=False)
        return
    SideBySide.failed += 1
    console.print(f"#{run.number} failed with code {code}:\n{text}", markup=False)


def _interrupt(running: Sequence[_StartedRun]) -> None:
    """As Ctrl-C would: each writes what it has."""
    for run in running:
        run.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + SECONDS_TO_END
    for run in running:
        try:
            run.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            run.process.kill()
            run.process.wait()
        run.output.close()


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()
