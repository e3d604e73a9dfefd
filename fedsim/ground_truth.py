"""What a client's model really saw: for the scorer alone, never in an attack's signature."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class GroundTruth:
    """The pictures of an audited update.

    Attributes:
        images: [B,C,H,W] in [0, 1] as the model saw them, after whatever a defense did to them.
        labels: [B], the client's own.
        ids: names of the pictures, for tables.
        private: [B,C,H,W] in [0, 1]: the client's pictures before any defense; None where they are `images`.
    """

    images: Tensor
    labels: Tensor
    ids: tuple[str, ...]
    private: Tensor | None = None

    @property
    def originals(self) -> Tensor:
        """[B,C,H,W]: what there is to protect."""
        return self.images if self.private is None else self.private
