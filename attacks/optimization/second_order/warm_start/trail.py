"""How far a start has come near: what a search that goes on after a kill does not do again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.optimization.second_order.steps.products import MatrixFree


@dataclass
class Trail:
    """Points that were reached, by the part of the way that ended there.

    Attributes:
        ends: and whether each explained enough.
        anchor, rough, spent: of the sketch that a race shares; see `MatrixFree`.
    """

    ends: dict[str, tuple[Float[Tensor, " n"], bool]] = field(default_factory=dict)
    anchor: Float[Tensor, " unknowns"] | None = None
    rough: bool = True
    spent: int = 0

    def add(self, part: str, end: Float[Tensor, " n"], enough: bool, shared: MatrixFree | None) -> None:
        self.ends[part] = end, enough
        if shared is not None:
            self.anchor, self.rough, self.spent = shared.anchor, shared.rough, shared.spent

    def lead(self, shared: MatrixFree) -> MatrixFree:
        """With the sketch that the race had."""
        shared.anchor, shared.rough, shared.spent = self.anchor, self.rough, self.spent
        return shared

    def tensors(self) -> dict[str, Tensor]:
        found = {f"trail/{part}": end for part, (end, _) in self.ends.items()}
        return found if self.anchor is None else found | {"trail": self.anchor}

    def record(self) -> dict[str, Any]:
        ends = {part: enough for part, (_, enough) in self.ends.items()}
        return {"ends": ends, "rough": self.rough, "spent": self.spent}

    def restore(self, tensors: Mapping[str, Tensor], record: Mapping[str, Any], device: torch.device) -> None:
        self.ends = {part: (tensors[f"trail/{part}"].to(device), enough) for part, enough in record["ends"].items()}
        self.anchor = tensors["trail"].to(device) if "trail" in tensors else None
        self.rough, self.spent = record["rough"], record["spent"]
