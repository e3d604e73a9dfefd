"""A process that trains a round whenever it is asked to, and says how long that took."""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors.torch import save_file

from fedsim.update import State


class Turns:
    """The answering side of a socket: lines of JSON.

    Args:
        folder: for the model after each way's first round.
    """

    def __init__(self, address: str, folder: Path) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
        self._lines = connection.makefile("rw", encoding="utf-8")
        self._folder = folder
        self._begun = (0.0, 0.0)

    def ready(self, ways: list[str]) -> None:
        self._say({"ways": ways})

    def begin(self) -> str:
        """Wait to be asked; the name of a way, or nothing where it is over."""
        name = self._lines.readline().strip()
        self._begun = time.perf_counter(), _processor()
        return name

    def end(self, name: str, model: Callable[[], State]) -> None:
        """The round is over, with this model."""
        wall, cpu = time.perf_counter() - self._begun[0], _processor() - self._begun[1]
        path = self._folder / f"{name}.safetensors"
        if not path.exists():
            save_file({key: tensor.detach().contiguous() for key, tensor in model().items()}, path)
        self._say({"wall": wall, "cpu": cpu})

    def serve(self, ways: Mapping[str, Callable[[], Callable[[], State]]]) -> None:
        """Train by these ways until it is over; each gives what its model is read by."""
        self.ready(list(ways))
        while name := self.begin():
            self.end(name, ways[name]())

    def _say(self, record: dict[str, object]) -> None:
        self._lines.write(json.dumps(record) + "\n")
        self._lines.flush()


def _processor() -> float:
    """Seconds of this process, and of compilers that it has started and that have ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system
