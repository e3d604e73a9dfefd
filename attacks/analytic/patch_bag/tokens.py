"""Where tokens without a position must lie: one affine set for all of them, and the condition that singles them out.

LayerNorm, projection and row spaces are linear in a token up to its scale, so that every mean Σ w_m (p_m, o_m) with
Σ w_m = 1 satisfies them: the patches are their corners, and no more is known. The MLP's activations are not linear:
of the whole set, only the tokens themselves have them in the rows of ∂L/∂W_2.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.analytic.first_block.levenberg_marquardt import Squares
from attacks.analytic.first_block.subspaces import AffineTokens, affine_patches, affine_tokens
from attacks.analytic.patch_bag.block import UnplacedBlock
from attacks.analytic.row_space.subspace import Subspace, row_space
from attacks.forward_mode import jacobian_product
from fedsim.errors import NotApplicable

SIGNAL = 10.0
"""Singular values of pure noise in m rows are about √m times it; directions count from so many times that."""


@dataclass(frozen=True)
class TokenSystem:
    """(I - H Hᵀ) hidden(base + Z x) = 0, H an orthonormal basis of the rows of ∂L/∂W_2.

    Attributes:
        count: tokens that are not alike behind the attention, each a solution; `distinct`: in front of it.
        noise: the relative residual that the noise of ∂L/∂W_2 leaves in a true token.
        gap: the smallest of all row spaces that were used.
    """

    block: UnplacedBlock
    tokens: AffineTokens
    span: Float[Tensor, "rank hidden"]
    count: int
    distinct: int
    noise: float
    gap: float

    @property
    def free(self) -> int:
        return self.tokens.tokens.directions.shape[1]

    @property
    def equations(self) -> int:
        return self.span.shape[1] - self.span.shape[0]

    def residual(self, x: Float[Tensor, "points free"]) -> tuple[Float[Tensor, "points hidden"], Tensor]:
        """r, and ‖activations‖ of each point."""
        hidden = self.block.hidden(self.tokens.tokens.base + x @ self.tokens.tokens.directions.T)
        return hidden - (hidden @ self.span.T) @ self.span, hidden.norm(dim=1)

    def jacobian(self, x: Float[Tensor, "points free"]) -> Float[Tensor, "points hidden free"]:
        def along(direction: Tensor) -> Tensor:
            moved: Tensor = jacobian_product(lambda x: self.residual(x)[0], x, direction.expand_as(x))
            return moved

        columns: Tensor = torch.func.vmap(along)(torch.eye(self.free, dtype=x.dtype, device=x.device))
        return columns.permute(1, 2, 0)

    def normal(self, x: Float[Tensor, "points free"]) -> Squares:
        r, J = self.residual(x)[0], self.jacobian(x)
        return Squares(r.square().sum(dim=1), (J.mT @ r[..., None])[..., 0], J.mT @ J)

    def relative(self, x: Float[Tensor, "points free"]) -> Float[Tensor, " points"]:
        r, size = self.residual(x)
        share: Tensor = r.norm(dim=1) / size
        return share


def token_system(
    block: UnplacedBlock, patch_grad: Float[Tensor, "width pixels"], qkv_grad: Float[Tensor, "rows width"], patches: int
) -> TokenSystem:
    """The system of one image of so many patches.

    Raises:
        NotApplicable: the tokens fill the whole width, or leave fewer equations than unknowns.
    """
    prefix, width = block.norm.prefix_tokens, block.norm.patch_weight.shape[0]
    total = patches + prefix
    if total >= width:
        raise NotApplicable(f"{total} tokens >= width {width}: their row space is everything")
    output_grad, inner_grad, outer_grad = block.gradients
    image = spanned(patch_grad, min(patches, *patch_grad.shape))
    inputs, inner = spanned(qkv_grad, total, complete=True), spanned(inner_grad, total, complete=True)
    outputs, outer = spanned(output_grad, min(total, *output_grad.shape)), spanned(outer_grad, total)
    count = len(inner.basis) - prefix
    if count < 1:
        raise NotApplicable("the first MLP's gradient spans no more than the prefix tokens")
    distinct = max(1, len(inputs.basis) - prefix)
    mixed = affine_patches(block.norm, image, inputs, distinct - 1)
    second = block.module.norm2
    tokens = affine_tokens(
        block.norm, mixed, outputs, (block.weight, block.bias), (second.weight, second.bias), inner, count - 1
    )
    system = TokenSystem(
        block, tokens, outer.basis, count, distinct, 0.0, min(one.gap for one in (image, inputs, inner, outer))
    )
    if system.equations <= system.free:
        raise NotApplicable(f"{system.equations} equations for {system.free} unknowns of each token")
    hidden = block.hidden(tokens.tokens.base)
    noise = float(outer.leak(hidden).max() * math.sqrt(system.equations) / hidden.norm())
    return TokenSystem(block, tokens, outer.basis, count, distinct, noise, system.gap)


def spanned(matrix: Float[Tensor, "rows width"], most: int, complete: bool = False) -> Subspace:
    """The rows' span, of `most` dimensions or of as many as stand out: patches may be alike, a blank border's are."""
    found = row_space(matrix, most, complete)
    rank = int((found.singular > SIGNAL * math.sqrt(len(matrix))).sum())
    return found if rank in (0, most) else row_space(matrix, rank, complete)
