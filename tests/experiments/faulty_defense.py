"""A defense whose code fails now and then; Ray workers import it from the checkout."""

import torch

from defenses.base import Batch, Defense


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
