"""Numbers, settings and the report as a run of MLflow."""

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from logging import WARNING, getLogger
from pathlib import Path
from typing import Any

from fedsim.errors import ConfigError
from fedsim.tracking.services import flat, keep_run, kept_run, library, run_settings

LONGEST_NAME = 250
LONGEST_VALUE = 6000
PARAMS_AT_ONCE = 100
"""MLflow's limits."""


class MLflow:
    """A run of MLflow: settings as parameters, numbers as metrics, report and configuration as artifacts.

    A resumed run goes on with the same one. Nothing that MLflow has can be taken back: a number that it has of a step
    is not given to it again, and a round that was made twice has the timings of both.

    Args:
        folder: inside the run folder; holds the database unless there is a server.
        tracking_uri: MLflow's address of a server or a database; None: a database in `folder`.
        experiment: under which the run stands; made where there is none of this name.

    Raises:
        ConfigError: MLflow is not installed, cannot be reached, or has lost the run to go on with.
    """

    def __init__(self, folder: str, tracking_uri: str | None = None, experiment: str = "fedsim") -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        mlflow, self._entities, exceptions = library("mlflow", "mlflow", "mlflow.entities", "mlflow.exceptions")
        self._refused = exceptions.MlflowException
        getLogger("mlflow").setLevel(WARNING)  # it tells of every table of a new database
        self._folder = Path(folder).resolve()
        self._folder.mkdir(parents=True, exist_ok=True)
        # SQLAlchemy reads % and ? in an address as more than letters.
        database = str(self._folder / "mlflow.db").replace("%", "%25").replace("?", "%3F")
        uri = f"sqlite:///{database}" if tracking_uri is None else tracking_uri
        kept = kept_run(self._folder)
        self._had: Counter[tuple[str, int, str]] = Counter()
        self._finished = False
        try:
            self._client = mlflow.MlflowClient(tracking_uri=uri)
            if kept is None:
                self._id = self._begin(experiment, None if tracking_uri else (self._folder / "artifacts").as_uri())
            else:
                self._id = kept["id"]
                self._go_on()
        except (self._refused, OSError) as error:
            wanted = "a database or server" if kept is None else f"what has the run {kept['id']}"
            raise ConfigError(f"tracker.{self._folder.name}.tracking_uri", uri, f"{wanted} ({_line(error)})") from error

    def log(self, step: int, values: dict[str, float]) -> None:
        now = int(1000 * time.time())
        metrics = []
        for name, value in values.items():
            key = _name(name)
            if self._had[key, step, repr(float(value))] > 0:
                self._had[key, step, repr(float(value))] -= 1
            else:
                metrics.append(self._entities.Metric(key, float(value), now, step))
        if metrics:
            with self._as_os_error():
                self._client.log_batch(self._id, metrics=metrics)

    def finish(self, files: Sequence[Path]) -> None:
        """The run came to its end, and these files are what it leaves."""
        with self._as_os_error():
            for path in files:
                self._client.log_artifact(self._id, str(path))
        self._finished = True

    def close(self) -> None:
        with self._as_os_error():
            self._client.set_terminated(self._id, "FINISHED" if self._finished else "KILLED")

    def _begin(self, experiment: str, artifacts: str | None) -> str:
        known = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment, artifacts) if known is None else known.experiment_id
        run = str(self._client.create_run(number, run_name=self._folder.parent.name).info.run_id)
        keep_run(self._folder, run)
        settings = flat(run_settings(self._folder))
        params = iter([self._entities.Param(_name(key), value[:LONGEST_VALUE]) for key, value in settings])
        while batch := list(islice(params, PARAMS_AT_ONCE)):
            self._client.log_batch(run, params=batch)
        return run

    def _go_on(self) -> None:
        names = self._client.get_run(self._id).data.metrics
        for metric in self._histories(names):
            self._had[metric.key, metric.step, repr(float(metric.value))] += 1
        self._client.update_run(self._id, status="RUNNING")

    def _histories(self, names: Iterable[str]) -> Iterator[Any]:
        for name in names:
            yield from self._client.get_metric_history(self._id, name)

    @contextmanager
    def _as_os_error(self) -> Iterator[None]:
        """What the run can do without: `Trackers` leaves a tracker out that raises this."""
        try:
            yield
        except self._refused as error:
            raise OSError(_line(error)) from error


def _name(text: str) -> str:
    """MLflow takes word characters, dots, dashes, spaces, and slashes between parts."""
    parts = [re.sub(r"[^\w. -]", "_", part) for part in text.split("/")]
    return "/".join("_" if part in ("", ".", "..") else part for part in parts)[:LONGEST_NAME]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
