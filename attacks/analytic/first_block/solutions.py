"""What a search has found of each position's solutions."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass
class Solutions:
    """Up to B solutions of each position; missing ones are inf.

    Attributes:
        residual: relative, ‖r‖/‖activations‖.
        nearly, nearly_residual: of each position, the best that was no solution; inf where there is none.
    """

    x: Float[Tensor, "tokens batch free"]
    residual: Float[Tensor, "tokens batch"]
    counts: Int[Tensor, " tokens"]
    nearly: Float[Tensor, "tokens free"]
    nearly_residual: Float[Tensor, " tokens"]
    trace: list[dict[str, float]] = field(default_factory=list)

    @classmethod
    def none(cls, like: Float[Tensor, "tokens width"], batch: int, free: int) -> "Solutions":
        """Before anything is found, of as many positions."""
        inf, tokens = torch.inf, len(like)
        return cls(
            like.new_full((tokens, batch, free), inf),
            like.new_full((tokens, batch), inf),
            torch.zeros(tokens, dtype=torch.long, device=like.device),
            like.new_full((tokens, free), inf),
            like.new_full((tokens,), inf),
        )

    @property
    def known(self) -> Bool[Tensor, "tokens batch"]:
        """Which were found."""
        return torch.arange(self.x.shape[1], device=self.x.device) < self.counts[:, None]

    def alike(self) -> Float[Tensor, "tokens batch free"]:
        """x; for a missing one another of its position (images may be alike there), else `nearly`, else the base."""
        last = (self.counts - 1).clamp(min=0)[:, None]
        index = torch.minimum(torch.arange(self.x.shape[1], device=self.x.device), last)
        x = self.x.gather(1, index[..., None].expand_as(self.x))
        x = torch.where((self.counts > 0)[:, None, None], x, self.nearly[:, None])
        return torch.where(x.isfinite(), x, 0.0)

    @property
    def complete(self) -> bool:
        return bool((self.counts == self.x.shape[1]).all())
