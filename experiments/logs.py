"""Quiet logs: everything into one file of the run folder, nothing twice."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Send all loggers to `path` for the block; Flower's own console output is silenced."""
    file = logging.FileHandler(path, encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root, flower = logging.getLogger(), logging.getLogger("flwr")
    console_handlers, level, propagate = list(flower.handlers), root.level, flower.propagate
    for handler in console_handlers:
        flower.removeHandler(handler)
    flower.propagate = True
    root.addHandler(file)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(file)
        root.setLevel(level)
        for handler in console_handlers:
            flower.addHandler(handler)
        flower.propagate = propagate
        file.close()
