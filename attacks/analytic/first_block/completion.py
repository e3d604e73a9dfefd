"""Missing tokens of an image by attention: what its other tokens read tells what they read it from."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attacks.analytic.first_block.block import PlainBlock
from attacks.analytic.first_block.grouping import group
from attacks.analytic.first_block.levenberg_marquardt import Squares, minimise
from attacks.analytic.first_block.solutions import Solutions
from attacks.analytic.first_block.subspaces import AffineTokens
from attacks.forward_mode import jacobian

MOST_MISSING = 5
"""Tokens of an image: with more of them the steps end elsewhere."""
STEPS = 12
"""Of Levenberg-Marquardt, from a random start."""
EXPLAINED = 1e-3
"""Of the outputs' norm: what may be left of an image whose tokens are right."""
SEEDS = 8
"""Positions that a grouping starts from."""


@dataclass(frozen=True)
class Attention:
    """The first attention, and the tokens that solutions x stand for.

    Attributes:
        embed: z of patches at those positions.
    """

    tokens: AffineTokens
    embed: Callable[[Float[Tensor, "rows pixels"], Int[Tensor, " rows"]], Float[Tensor, "rows width"]]
    block: PlainBlock

    def missing(self, solutions: Solutions, size: float, rng: torch.Generator) -> Float[Tensor, "tokens free"]:
        """For each position an x that completes an image of which few tokens are missing; inf where there is none.

        Args:
            size: typical ‖x‖.
        """
        x, known = solutions.x, solutions.known
        rows = torch.arange(len(known), device=x.device)
        patches, outputs = self.tokens.split(torch.where(known[..., None], x, 0.0))
        z = torch.stack([self.embed(part, rows) for part in patches.unbind(dim=1)], dim=1)
        order, _ = group(z, outputs, self.block.attend, SEEDS, known)
        found = torch.full_like(x[:, 0], torch.inf)
        for own in order.T:
            open_ = (~known[rows, own]).nonzero()[:, 0]
            if 0 < len(open_) <= MOST_MISSING:
                solved = self._solved(z[rows, own], outputs[rows, own], open_, size, rng)
                if solved is not None:
                    found[open_] = solved
        return found

    def _solved(
        self,
        z: Float[Tensor, "tokens width"],
        outputs: Float[Tensor, "tokens width"],
        open_: Int[Tensor, " open"],
        size: float,
        rng: torch.Generator,
    ) -> Float[Tensor, "open free"] | None:
        """The x at open positions under which each token of an image reads what it should."""
        free, parts = self.tokens.tokens.directions.shape[1], self.block.heads(z)

        def residual(x: Float[Tensor, " unknowns"]) -> Float[Tensor, " rows"]:
            patches, own = self.tokens.at(open_, x.view(len(open_), free))
            moved = self.block.heads(self.embed(patches, open_))
            members = (part.index_copy(-2, open_, new) for part, new in zip(parts, moved, strict=True))
            left: Tensor = self.block.read(*members) - outputs.index_copy(0, open_, own)
            return left.flatten()

        def evaluate(x: Float[Tensor, "1 unknowns"]) -> Squares:
            r, J = residual(x[0]), jacobian(residual, x[0])
            return Squares(r.square().sum()[None], (J.T @ r)[None], (J.T @ J)[None])

        drawn = torch.randn(1, len(open_) * free, generator=rng, dtype=z.dtype).to(z.device)
        x, _ = minimise(evaluate, size / free**0.5 * drawn, STEPS)
        explained = float(residual(x[0]).norm()) <= EXPLAINED * float(outputs.norm())
        return x.view(len(open_), free) if explained else None
