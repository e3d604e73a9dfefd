"""Where numbers go besides the run folder's own files."""

from collections.abc import Callable
from logging import getLogger
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from fedsim.errors import ConfigError

logger = getLogger(__name__)

FINAL = ("report.html", "config.yaml")
"""Files of the run folder that trackers are told of at its end."""


class Tracker(Protocol):
    """A place for numbers: `conf/tracker/NAME.yaml` names its class.

    Three further methods are called where there are any: `flush()` before a round counts as done for good,
    `resume(step)` before a resumed run logs anything: what has been logged from this step on does not count, and
    `finish(files)` once a run came to its end: paths of its report and its settings.
    """

    def log(self, step: int, values: dict[str, float]) -> None:
        """Record scalars by name at a round, or at the number of an observation."""

    def close(self) -> None:
        """Flush."""


class TensorBoard:
    """Event files beside the report: `tensorboard --logdir RUN`."""

    def __init__(self, folder: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._folder = folder
        self._writer = SummaryWriter(folder)

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        self._writer.flush()

    def resume(self, step: int) -> None:
        """TensorBoard hides the events of an interrupted run from this step on."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer.close()
        self._writer = SummaryWriter(self._folder, purge_step=step)

    def close(self) -> None:
        self._writer.close()


class Trackers:
    """All configured trackers as one.

    A tracker that cannot write (a full disk) is said once and left out: the run folder's own files have every number.
    The end of a `with` block is that of the run, whose report is written then.
    """

    def __init__(self, config: dict[str, Any] | None, root: Path) -> None:
        self._root = root
        self._trackers: dict[str, Tracker] = {}
        for name, settings in (config or {}).items():
            if not isinstance(settings, dict):
                raise ConfigError(f"tracker.{name}", settings, "settings, with the class to build as _target_")
            try:
                tracker = instantiate(settings, folder=str(root / name))
            except InstantiationException as error:
                if isinstance(error.__cause__, ConfigError):
                    raise error.__cause__ from None
                raise
            if not callable(getattr(tracker, "log", None)):
                raise ConfigError(f"tracker.{name}._target_", settings.get("_target_"), "a class with log and close")
            self._trackers[name] = tracker

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        self.close()

    def log(self, step: int, values: dict[str, float]) -> None:
        self._each(lambda tracker: tracker.log(step, values))

    def flush(self) -> None:
        self._each(lambda tracker: getattr(tracker, "flush", _nothing)())

    def resume(self, step: int) -> None:
        """The run goes on from this step: what was logged from it on does not count."""
        self._each(lambda tracker: getattr(tracker, "resume", _nothing)(step))

    def finish(self) -> None:
        """The run came to its end; its report is written."""
        files = [path for name in FINAL if (path := self._root / name).is_file()]
        self._each(lambda tracker: getattr(tracker, "finish", _nothing)(files))

    def close(self) -> None:
        self._each(lambda tracker: tracker.close())

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except OSError as error:
                logger.error("tracker.%s gets nothing from here on: %s", name, error)
                del self._trackers[name]


def _nothing(*_: object) -> None:
    """For trackers that have no such method."""
