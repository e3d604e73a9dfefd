"""The one condition that mixtures of pictures break: the activations of the first MLP lie in the rows of ∂L/∂W_fc2.

gelu(W_1 LN2(z') + b_1) is nonlinear in z': of the affine set of `subspaces`, only the tokens of the batch itself keep
the condition. Every position is a system of its own, 4D - BT equations in about T(B - 1) unknowns with B solutions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.analytic.first_block.subspaces import AffineSet


@dataclass(frozen=True)
class BlockResidual:
    """r of each position, its Jacobian, and ‖activations‖, by which ‖r‖ is judged."""

    values: Float[Tensor, "tokens hidden"]
    jacobian: Float[Tensor, "tokens hidden free"]
    size: Float[Tensor, " tokens"]


@dataclass(frozen=True)
class HiddenSystem:
    """(I - H Hᵀ) act(W_1 LN2(base_n + Z x_n) + b_1) = 0, H an orthonormal basis of the rows of ∂L/∂W_fc2.

    Attributes:
        scale, shift, eps: γ, β and ε of the LayerNorm before the MLP.
        activation: elementwise.
        span: Hᵀ.
    """

    tokens: AffineSet
    scale: Float[Tensor, " width"]
    shift: Float[Tensor, " width"]
    eps: float
    weight: Float[Tensor, "hidden width"]
    bias: Float[Tensor, " hidden"]
    activation: Callable[[Tensor], Tensor]
    span: Float[Tensor, "rank hidden"]

    def at(self, rows: Tensor, x: Float[Tensor, "rows free"]) -> BlockResidual:
        """Residual of the positions `rows` at x, with its Jacobian."""
        directions = self.tokens.directions
        centred = directions - directions.mean(dim=0, keepdim=True)
        z = self.tokens.base[rows] + x @ directions.T
        z = z - z.mean(dim=1, keepdim=True)
        deviation = (z.square().mean(dim=1, keepdim=True) + self.eps).sqrt()
        normal = z / deviation
        before = (self.scale * normal + self.shift) @ self.weight.T + self.bias
        with torch.enable_grad():  # elementwise: the gradient of the sum is the slope
            before = before.detach().requires_grad_()
            hidden = self.activation(before)
            (slope,) = torch.autograd.grad(hidden.sum(), before)
        hidden, before = hidden.detach(), before.detach()
        # d LN2 = γ∘(C dz - n (n·C dz)/D)/σ
        along = (normal @ centred) / len(centred)
        moved = (self.weight @ (self.scale[:, None] * centred)) - (
            ((self.scale * normal) @ self.weight.T)[..., None] * along[:, None]
        )
        jacobian = (slope / deviation)[..., None] * moved
        jacobian = jacobian - self.span.T @ (self.span @ jacobian)
        return BlockResidual(hidden - (hidden @ self.span.T) @ self.span, jacobian, hidden.norm(dim=1))
