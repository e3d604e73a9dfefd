"""Where each token behind the first attention must lie, for a batch: an affine set, from four row spaces.

Rows of ∂L/∂W span the inputs of W. Those of the patch projection, of qkv, of the attention's output projection and of
fc1 give linear conditions on (p_n, o_n) for every position n, o being what the output projection reads. The solutions
are one picture's (p_{b,n}, o_{b,n}) plus the span of {(p_{b,m} - p_{b',m}, o_{b,m} - o_{b',m})}: the attention
itself, which ties the tokens of a picture together, is not needed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.analytic.row_space.first_norm import FirstNorm
from attacks.analytic.row_space.subspace import Subspace
from attacks.certificate.linear import MARGIN
from fedsim.errors import NotApplicable


@dataclass(frozen=True)
class AffineSet:
    """{base_n + directions x}: one set of directions for all positions.

    Attributes:
        gap: smallest singular value of the equations in use over the largest that was dropped.
    """

    base: Float[Tensor, "tokens unknowns"]
    directions: Float[Tensor, "unknowns free"]
    gap: float


@dataclass(frozen=True)
class AffineTokens:
    """p_n = patches.base_n + patches.directions c_n, o_n = outputs y_n, (c_n, y_n) = joint.base_n + joint.directions x.

    Attributes:
        outputs: a basis of the rows of ∂L/∂W_o.
        tokens: z'_n = z_n + W_o o_n + b_o as an affine set of the same x, its directions orthonormal.
    """

    patches: AffineSet
    outputs: Float[Tensor, "width rank"]
    joint: AffineSet
    tokens: AffineSet

    @property
    def outputs_of_x(self) -> AffineSet:
        """o_n as an affine set of x."""
        known = self.patches.directions.shape[1]
        directions = self.outputs @ self.joint.directions[known:]
        return AffineSet(self.joint.base[:, known:] @ self.outputs.T, directions, self.joint.gap)

    def at(
        self, rows: Tensor, x: Float[Tensor, "rows free"]
    ) -> tuple[Float[Tensor, "rows pixels"], Float[Tensor, "rows width"]]:
        """p and o of x at those positions."""
        joint, known = self.joint.base[rows] + x @ self.joint.directions.T, self.patches.directions.shape[1]
        patches = self.patches.base[rows] + joint[:, :known] @ self.patches.directions.T
        return patches, joint[:, known:] @ self.outputs.T

    def split(
        self, x: Float[Tensor, "tokens batch free"]
    ) -> tuple[Float[Tensor, "tokens batch pixels"], Float[Tensor, "tokens batch width"]]:
        """p and o of solutions x."""
        joint = self.joint.base[:, None] + x @ self.joint.directions.T
        known = self.patches.directions.shape[1]
        patches = self.patches.base[:, None] + joint[..., :known] @ self.patches.directions.T
        return patches, joint[..., known:] @ self.outputs.T

    def fit(
        self,
        rows: Tensor,
        x: Float[Tensor, "rows free"],
        patches: Float[Tensor, "rows pixels"],
        residual: Float[Tensor, "rows hidden"],
        size: Float[Tensor, " rows"],
        jacobian: Callable[[], Float[Tensor, "rows hidden free"]],
    ) -> "TokenFit":
        """An image's patches, and the x that is nearest to its tokens at those positions."""
        free, known = self.tokens.directions.shape[1], self.patches.directions.shape[1]
        weakest = torch.linalg.svdvals(jacobian())[:, -1] if free else torch.ones_like(size)
        moved = self.patches.directions @ self.joint.directions[:known]
        reach = float(torch.linalg.matrix_norm(moved, ord=2)) if free and known else 0.0
        outside = (patches - self.at(rows, x)[0]).norm(dim=1)
        return TokenFit(residual.norm(dim=1), size, weakest, outside, reach)


@dataclass(frozen=True)
class TokenFit:
    """An image's patches in the equations: each token's ‖r‖, activations and smallest singular value of its Jacobian.

    Attributes:
        outside: distance of each patch from the affine set that should hold it.
        reach: pixels that a unit of the unknowns moves at most.
    """

    residual: Float[Tensor, " tokens"]
    size: Float[Tensor, " tokens"]
    weakest: Float[Tensor, " tokens"]
    outside: Float[Tensor, " tokens"]
    reach: float

    def errors(self, again: "TokenFit", noise: float) -> Float[Tensor, " tokens"] | None:
        """How far off each patch may be: what the equations make of their noise, and its set; None: anywhere."""
        if not bool((self.weakest > 0).all()):
            return None
        most = torch.stack([self.residual, again.residual, noise * self.size]).amax(dim=0)
        return MARGIN * (self.reach * most / self.weakest + torch.maximum(self.outside, again.outside))


def solution_set(
    equations: Float[Tensor, "equations unknowns"], right_hand: Float[Tensor, "tokens equations"], free: int
) -> AffineSet:
    """Minimum-norm solutions, and the `free` weakest directions: more where equations are short.

    Raises:
        NotApplicable: there is no equation.
    """
    if not len(equations):
        raise NotApplicable("the tokens and a norm's bias span the whole width: no equation is left")
    left, singular, right = torch.linalg.svd(equations, full_matrices=True)
    used = min(equations.shape[1] - free, len(singular))
    base = ((right_hand @ left[:, :used]) / singular[:used]) @ right[:used]
    rounding = float(singular[0]) * torch.finfo(singular.dtype).eps
    dropped = max(float(singular[used]), rounding) if used < len(singular) else math.inf
    # No dropped singular value is no gap at all: every equation is in use.
    gap = float(singular[used - 1]) / dropped if used and dropped < math.inf else 1.0
    return AffineSet(base, right[used:].T.contiguous(), gap)


def affine_patches(norm: FirstNorm, image: Subspace, tokens: Subspace, free: int) -> AffineSet:
    """p_n with LN1(W_p p_n + b_p + e_n) in the rows of ∂L/∂W_qkv, up to `free` directions."""
    span = image.basis.T
    equations, right_hand = _membership(norm.patch_weight @ span, norm.known, norm.scale, norm.shift, tokens)
    found = solution_set(equations, right_hand, min(free, span.shape[1]))
    return AffineSet(found.base @ span.T, span @ found.directions, found.gap)


def affine_tokens(
    norm: FirstNorm,
    patches: AffineSet,
    outputs: Subspace,
    projection: tuple[Float[Tensor, "width width"], Float[Tensor, " width"]],
    second_norm: tuple[Float[Tensor, " width"], Float[Tensor, " width"]],
    hidden: Subspace,
    free: int,
) -> AffineTokens:
    """(p_n, o_n) with LN2(z_n + W_o o_n + b_o) in the rows of ∂L/∂W_fc1 as well, up to `free` directions.

    Args:
        projection: W_o and b_o, layer scale included.
        second_norm: γ and β of the LayerNorm before the MLP.
    """
    weight, bias = projection
    basis = outputs.basis.T
    reach = torch.cat((norm.patch_weight @ patches.directions, weight @ basis), dim=1)
    known = norm.known + patches.base @ norm.patch_weight.T + bias
    equations, right_hand = _membership(reach, known, *second_norm, hidden)
    joint = solution_set(equations, right_hand, min(free, reach.shape[1]))
    # Orthonormal in the space of tokens: there the unknowns have one scale.
    orthonormal, triangle = torch.linalg.qr(reach @ joint.directions)
    directions = torch.linalg.solve_triangular(triangle, joint.directions, upper=True, left=False)
    joint = AffineSet(joint.base, directions, joint.gap)
    return AffineTokens(patches, basis, joint, AffineSet(known + joint.base @ reach.T, orthonormal, joint.gap))


def _membership(
    reach: Float[Tensor, "width unknowns"],
    known: Float[Tensor, "tokens width"],
    scale: Float[Tensor, " width"],
    shift: Float[Tensor, " width"],
    inputs: Subspace,
) -> tuple[Float[Tensor, "equations unknowns"], Float[Tensor, "tokens equations"]]:
    """γ∘C(known_n + reach x)/σ_n + β in the span of `inputs`; an unknown σ_n costs the one direction of β."""
    null = inputs.null
    inside = null @ shift
    if float(inside.norm()) > torch.finfo(shift.dtype).eps * float(shift.norm()):
        null = torch.linalg.svd(inside[None] / inside.norm(), full_matrices=True)[2][1:] @ null
    equations = null @ (scale[:, None] * (reach - reach.mean(dim=0, keepdim=True)))
    return equations, -(scale * (known - known.mean(dim=1, keepdim=True))) @ null.T
