"""What masking amounted to in one client's turn."""

from dataclasses import dataclass, field

from jaxtyping import Bool
from torch import Tensor


@dataclass
class MaskingCounts:
    """Counts; ratios are taken at the end.

    Attributes:
        masked: masked positions of `pictures` with `positions` in all, some of them `empty`: without a masked one.
        skipped: batches that were not masked; their pictures are not counted.
        dal_losses: of each step, before their weight.
    """

    batches: int = 0
    skipped: int = 0
    pictures: int = 0
    empty: int = 0
    positions: int = 0
    masked: int = 0
    dal_losses: list[float] = field(default_factory=list)

    def skip(self) -> None:
        self.batches += 1
        self.skipped += 1

    def add(self, mask: Bool[Tensor, "batch tokens"]) -> None:
        counts = mask.numpy().sum(axis=1)
        self.batches += 1
        self.pictures += len(counts)
        self.positions += mask.numel()
        self.masked += int(counts.sum())
        self.empty += int((counts == 0).sum())

    def mask_ratio(self) -> float:
        return self.masked / max(1, self.positions)

    def empty_masks(self) -> float:
        return self.empty / max(1, self.pictures)

    def masked_batches(self) -> float:
        return 1.0 - self.skipped / self.batches if self.batches else 0.0

    def dal_loss(self) -> float:
        return sum(self.dal_losses) / max(1, len(self.dal_losses))
