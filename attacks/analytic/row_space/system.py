"""Row-space intersection: equations for each patch that need no token gradients (leakage without ∂L/∂pos_embed)."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.analytic.row_space.first_norm import FirstNorm
from attacks.analytic.row_space.subspace import Subspace
from fedsim.errors import NotApplicable

SPURIOUS = 0.2
"""Share of its squared noise by which a squared singular value must exceed it, for its direction to be reached."""


@dataclass(frozen=True)
class PatchSystem:
    """K a_n = r_n for the coordinates a_n of patch n, p_n = base_n + V a_n: one matrix for all positions, as its SVD.

    Attributes:
        span: Vᵀ, an orthonormal basis of where the patches may lie: the rows of ∂L/∂W_p, unless more is known.
        base: what is known of each patch already, orthogonal to `span`.
        equations, right_hand: K and r.
        singular, directions: those of K, largest first, as many as unknowns (zeros where equations are short).
        estimate: minimum-norm a_n in coordinates of `directions`, zero where the singular value is.
    """

    span: Float[Tensor, "unknowns pixels"]
    base: Float[Tensor, "tokens pixels"]
    equations: Float[Tensor, "equations unknowns"]
    right_hand: Float[Tensor, "tokens equations"]
    singular: Float[Tensor, " unknowns"]
    directions: Float[Tensor, "unknowns unknowns"]
    estimate: Float[Tensor, "tokens unknowns"]

    def patches(self, coordinates: Float[Tensor, "tokens unknowns"]) -> Float[Tensor, "tokens pixels"]:
        """From coordinates of `directions` to pixels."""
        return self.base + coordinates @ self.directions @ self.span

    def coordinates(self, patches: Float[Tensor, "tokens pixels"]) -> Float[Tensor, "tokens unknowns"]:
        """Of the closest patches that the system allows."""
        return (patches - self.base) @ self.span.T @ self.directions.T

    def residual(self, coordinates: Float[Tensor, "tokens unknowns"]) -> Float[Tensor, "tokens equations"]:
        return coordinates @ self.directions @ self.equations.T - self.right_hand


def patch_system(
    norm: FirstNorm,
    span: Float[Tensor, "unknowns pixels"],
    tokens: Subspace,
    base: Float[Tensor, "tokens pixels"] | None = None,
) -> PatchSystem:
    """The condition that u_n lies in the row space of ∂L/∂W_qkv, for p_n in the row space of ∂L/∂W_p.

    With Q the projection off span{u_t, β}: Q γ∘C(W_p V a_n + b_p + e_n) = 0, linear in a_n. Projecting off β as well
    is what an unknown σ_n for each token (σ_n β stands in the equation) amounts to.

    Raises:
        NotApplicable: the tokens, and β, span the whole width.
    """
    null = tokens.null.T
    if bool(norm.shift.any()):
        null = _off(null, norm.shift)
    if not null.shape[1]:
        raise NotApplicable("the tokens and the first norm's bias span the whole width: no equation is left")
    centred = norm.patch_weight @ span.T
    centred = norm.scale[:, None] * (centred - centred.mean(dim=0, keepdim=True))
    if base is None:
        base = torch.zeros(len(norm.known), span.shape[1], dtype=torch.float64, device=span.device)
    known = norm.known + base @ norm.patch_weight.T
    known = norm.scale * (known - known.mean(dim=1, keepdim=True))
    equations, right_hand = null.T @ centred, -(known @ null)
    left, singular, right = torch.linalg.svd(equations, full_matrices=True)
    unknowns = equations.shape[1]
    found = len(singular)
    rounding = float(singular[0]) * torch.finfo(torch.float64).eps * max(equations.shape)
    inverse = torch.where(singular > rounding, 1.0 / singular.clamp(min=rounding), 0.0)
    estimate = torch.zeros(len(known), unknowns, dtype=torch.float64, device=known.device)
    estimate[:, :found] = (right_hand @ left[:, :found]) * inverse
    padded = torch.zeros(unknowns, dtype=torch.float64, device=known.device)
    padded[:found] = singular
    return PatchSystem(span, base, equations, right_hand, padded, right, estimate)


@dataclass(frozen=True)
class Uncertainty:
    """How well each direction of a `PatchSystem` is known.

    Attributes:
        noise: standard deviation of an equation of each token.
        deviation: of each coordinate, for the median token; inf where no equation reaches it.
        residual: ‖K a - r‖ / ‖r‖ of the estimate.
    """

    noise: Float[Tensor, " tokens"]
    deviation: Float[Tensor, " unknowns"]
    residual: float


def uncertainty(system: PatchSystem, norm: FirstNorm, tokens: Subspace) -> Uncertainty:
    """The noise of the equations: what the gradient's own noise explains, or the residual where that is larger."""
    # Directions of hardly any weight would blow the tokens up that the leak is read from.
    steady = system.singular > 1e-3 * system.singular[0]
    patches = system.patches(torch.where(steady, system.estimate, 0.0))
    embedded = patches @ norm.patch_weight.T + norm.known
    centred = norm.scale * (embedded - embedded.mean(dim=1, keepdim=True))
    noise = tokens.leak(centred)
    left_over = system.residual(system.estimate)
    spare = system.equations.shape[0] - system.equations.shape[1]
    if spare > 0:
        noise = torch.maximum(noise, left_over.norm(dim=1) / math.sqrt(spare))
    typical = noise.median()
    # A direction that no equation reaches still gets a singular value, from the noise in the equations themselves.
    seen = (system.directions @ system.span) @ norm.patch_weight.T
    spurious = tokens.leak(norm.scale * (seen - seen.mean(dim=1, keepdim=True))) * math.sqrt(len(system.equations))
    honest = system.singular.square() - spurious.square()
    reached = honest > SPURIOUS * spurious.square()
    deviation = torch.where(reached, typical / honest.clamp(min=1e-300).sqrt(), torch.inf)
    size = system.right_hand.norm().clamp(min=torch.finfo(torch.float64).tiny)
    return Uncertainty(noise, deviation, float(left_over.norm() / size))


def _off(null: Float[Tensor, "width spare"], shift: Float[Tensor, " width"]) -> Float[Tensor, "width less"]:
    """The directions of `null` that are orthogonal to β."""
    inside = null.T @ shift
    size = inside.norm()
    if size <= torch.finfo(torch.float64).eps * shift.norm():
        return null
    complement = torch.linalg.svd(inside[None] / size, full_matrices=True)[2][1:]
    orthogonal: Tensor = null @ complement.T
    return orthogonal
