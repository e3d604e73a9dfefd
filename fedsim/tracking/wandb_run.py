"""Numbers, settings and the report as a run of Weights & Biases."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from fedsim.errors import ConfigError
from fedsim.tracking.services import keep_run, kept_run, library, run_settings

MODES = ("offline", "online")


class WeightsAndBiases:
    """A run of Weights & Biases: settings as its config, numbers over `round`, report and configuration as files.

    Offline, nothing leaves the machine until `wandb sync`. A resumed run goes on with the same one, in a further
    folder beside the first; `wandb sync --append` sends both.

    Args:
        folder: inside the run folder; everything that is written lies there.
        mode: offline or online.
        entity: the user or team; None: the account's own.

    Raises:
        ConfigError: the library is not installed, or the service refuses.
    """

    def __init__(self, folder: str, mode: str = "offline", project: str = "fedsim", entity: str | None = None) -> None:
        self._folder = Path(folder).resolve()
        if mode not in MODES:
            raise ConfigError(f"tracker.{self._folder.name}.mode", mode, f"one of {', '.join(MODES)}")
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        wandb, errors = library("wandb", "wandb", "wandb.errors")
        self._refused = errors.Error
        self._folder.mkdir(parents=True, exist_ok=True)
        kept = kept_run(self._folder)
        self._id = uuid4().hex if kept is None else kept["id"]
        self._rows = 0 if kept is None else int(kept.get("rows", 0))
        self._flushed = self._rows if kept is None else int(kept.get("flushed", self._rows))
        self._finished = False
        try:
            self._run = wandb.init(
                id=self._id,
                resume="allow",
                mode=mode,
                project=project,
                entity=entity,
                name=self._folder.parent.name,
                dir=str(self._folder),
                config=run_settings(self._folder),
                settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
            )
        except (self._refused, OSError) as error:
            words = f"what the service allows ({error})"
            raise ConfigError(f"tracker.{self._folder.name}.mode", mode, words) from error
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")
        self._keep()

    def log(self, step: int, values: dict[str, float]) -> None:
        # Results of attacks come late: rows are numbered as they come, and their round is a column.
        with self._as_os_error():
            self._run.log({"round": step, **values}, step=self._rows)
        self._rows += 1

    def flush(self) -> None:
        """A resumed run numbers its rows from here on, so that they replace those of rounds that are made again."""
        self._flushed = self._rows
        self._keep()

    def resume(self, step: int) -> None:
        """Rows of after the last `flush` are logged again; an audit that goes on has no rounds and makes none again."""
        self._rows = self._flushed

    def finish(self, files: Sequence[Path]) -> None:
        """The run came to its end, and these files are what it leaves."""
        for path in files:
            shutil.copy(path, self._run.dir)
        self._finished = True

    def close(self) -> None:
        if self._finished:
            self._flushed = self._rows
        self._keep()
        with self._as_os_error():
            self._run.finish(exit_code=0 if self._finished else 1)

    def _keep(self) -> None:
        keep_run(self._folder, self._id, rows=self._rows, flushed=self._flushed)

    @contextmanager
    def _as_os_error(self) -> Iterator[None]:
        """What the run can do without: `Trackers` leaves a tracker out that raises this."""
        try:
            yield
        except self._refused as error:
            raise OSError(" ".join(str(error).split())[:300]) from error
