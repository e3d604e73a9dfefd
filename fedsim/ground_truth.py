"""What a client's model really saw: for the scorer alone, never in an attack's signature."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class GroundTruth:
    """The pictures of an audited update.

    Attributes:
        images: [B,C,H,W] in [0, 1], after augmentation and whatever a defense did to them.
        labels: [B].
        ids: names of the pictures, for tables.
    """

    images: Tensor
    labels: Tensor
    ids: tuple[str, ...]
