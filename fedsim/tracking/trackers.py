"""Where numbers go besides the run folder's own files."""

from pathlib import Path
from typing import Any, Protocol

from hydra.utils import instantiate

from fedsim.errors import ConfigError


class Tracker(Protocol):
    """A place for numbers: `conf/tracker/NAME.yaml` names its class."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Record scalars by name at a round, or at the number of an observation."""

    def close(self) -> None:
        """Flush."""


class TensorBoard:
    """Event files beside the report: `tensorboard --logdir RUN`."""

    def __init__(self, folder: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder)

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class Trackers:
    """All configured trackers as one."""

    def __init__(self, config: dict[str, Any] | None, root: Path) -> None:
        self._trackers: list[Tracker] = []
        for name, settings in (config or {}).items():
            tracker = instantiate(settings, folder=str(root / name))
            if not callable(getattr(tracker, "log", None)):
                raise ConfigError(f"tracker.{name}._target_", settings.get("_target_"), "a class with log and close")
            self._trackers.append(tracker)

    def log(self, step: int, values: dict[str, float]) -> None:
        for tracker in self._trackers:
            tracker.log(step, values)

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()
