"""Quiet logs: everything into one file of the run folder, nothing twice."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LIBRARIES = ("flwr", "hydra.utils")


def quiet_libraries() -> None:
    """Take what Flower and Hydra print away; their records go where all others go, and nowhere before a run has a log.

    What Hydra logs of a class that cannot be imported, it raises as well.
    """
    for name in LIBRARIES:
        logger = logging.getLogger(name)
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
        logger.addHandler(logging.NullHandler())
        logger.propagate = True


@contextmanager
def libraries_silenced() -> Iterator[None]:
    """The same in somebody else's session, which has its own back after the block."""
    loggers = [logging.getLogger(name) for name in LIBRARIES]
    before = [(logger, list(logger.handlers), logger.propagate) for logger in loggers]
    quiet_libraries()
    try:
        yield
    finally:
        for logger, handlers, propagate in before:
            logger.handlers[:], logger.propagate = handlers, propagate


class _Records(logging.Formatter):
    """Further lines of a record are indented, so that no text in one (a client's error) can pass for another."""

    def format(self, record: logging.LogRecord) -> str:
        lines = super().format(record).splitlines() or [""]
        return "\n    ".join("".join(c if c.isprintable() or c == "\t" else "?" for c in line) for line in lines)


class _File(logging.FileHandler):
    """A record that a full disk does not take is lost: no traceback of it stands on the terminal."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):  # what it still holds
            super().close()


@contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Send all loggers to `path` for the block."""
    file = _File(path, encoding="utf-8")
    file.setFormatter(_Records("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(file)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(file)
        root.setLevel(level)
        file.close()
