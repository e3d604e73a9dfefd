"""A defense whose code fails now and then; Ray workers import it from the checkout."""

import os
import time
from contextlib import suppress
from pathlib import Path

import ray
import torch

from defenses.base import Batch, ClientRound, Defense


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
