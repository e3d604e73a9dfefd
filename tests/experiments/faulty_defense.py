"""A defense whose code fails now and then; Ray workers import it from the checkout."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import ray
import torch

from defenses.base import Batch, ClientRound, Defense
from fedsim.update import State, Update


class FailsAtBatch(Defense):
    """Raises at the `at`-th batch that its process sees."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.batches = 0

    def transform_batch(self, batch: Batch, rng: torch.Generator) -> Batch:
        self.batches += 1
        if self.batches == self.at:
            raise RuntimeError("<b>out of pictures</b>")
        return batch


class HangsOnce(Defense):
    """In round 2 the first client on Ray writes its node's id into the file `marker`, and hangs."""

    def __init__(self, marker: str) -> None:
        self.marker = Path(marker)

    def begin(self, turn: ClientRound) -> None:
        super().begin(turn)
        if turn.server_round != 2 or not ray.is_initialized() or self.marker.exists():
            return
        node = ray.get_runtime_context().get_node_id()
        partial = self.marker.with_suffix(f".{os.getpid()}")
        partial.write_text(node)
        with suppress(FileExistsError):
            os.link(partial, self.marker)
            time.sleep(600)


class Slow(Defense):
    """Takes its time once an update, and writes a line into the file `log`."""

    def __init__(self, log: str, seconds: float) -> None:
        self.log, self.seconds = Path(log), seconds

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        with self.log.open("a", encoding="utf-8") as log:
            log.write("one\n")
        time.sleep(self.seconds)
        return update


class Spoils(Defense):
    """Shares what no honest client would; with `how=dropped` what one may, as it withholds the rest."""

    def __init__(self, how: str) -> None:
        self.how = how

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        spoilt: dict[str, Callable[[State], State]] = {
            "flat": lambda tensors: {name: tensor.flatten() for name, tensor in tensors.items()},
            "divided": lambda tensors: {name: tensor / 0 for name, tensor in tensors.items()},
            "huge": lambda tensors: {name: 1e20 * torch.ones_like(tensor) for name, tensor in tensors.items()},
            "renamed": lambda tensors: {f"own.{name}": tensor for name, tensor in tensors.items()},
            "dropped": lambda tensors: dict(list(tensors.items())[:3]),
        }
        return replace(update, tensors=spoilt[self.how](update.tensors))
