"""The equations that a batch's head gradient puts on its features, for given labels, and their solution.

A batch of B gives the head G = [∂L/∂W, ∂L/∂b] = (1/B) Rᵀ [H, 1] with R = softmax(H Wᵀ + b) - Y. For B < C the rows
of [H, 1] lie in the row space of G: with the compact SVD G = P S Qᵀ of rank r <= B they are M Qᵀ, and what is left
to find is M in R^{B×r}, whose product with Qᵀ's last column is 1. That leaves B (r - 1) unknowns for (C - 1) r
equations, whatever the width of the head: the right counts solve them, wrong ones do not.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

TOLERANCE = 32.0
"""Residuals accepted, in roundings of the shared gradient (right counts leave 1 … 30)."""


@dataclass(frozen=True)
class HeadSystem:
    """The equations in the row space of G.

    Attributes:
        target: B P S, what Rᵀ M has to be.
        head: [W, b] Q, so that the logits are M headᵀ.
        basis: Qᵀ.
        origin, directions: M = origin + T directionsᵀ has a last feature of 1, and directions ⟂ origin.
        scale: B ‖G‖.
        outside: the part of G outside its first B singular vectors or its zero column sums, relative.
        condition: largest over smallest singular value.
        smallest: the B-th singular value over ‖G‖.

    M covers every feature only where r = B: below, errors p - y may depend on each other, and what these add to
    features leaves no trace in G.
    """

    target: Float[Tensor, "classes rank"]
    head: Float[Tensor, "classes rank"]
    basis: Float[Tensor, "rank columns"]
    origin: Float[Tensor, "rank"]
    directions: Float[Tensor, "rank free"]
    scale: float
    outside: float
    condition: float
    smallest: float

    def tolerance(self, eps: float) -> float:
        """Below which a relative residual is what a rounding of `eps` leaves."""
        return max(1e-9, TOLERANCE * eps, TOLERANCE / 4 * self.outside)


def joined(
    weight: Float[Tensor, "classes features"], bias: Float[Tensor, "classes"]
) -> Float[Tensor, "classes columns"]:
    """[W, b] in float64, on the CPU."""
    return torch.cat([weight.detach(), bias.detach()[:, None]], dim=1).double().cpu()


def head_system(
    weights: Float[Tensor, "classes columns"], gradient: Float[Tensor, "classes columns"], batch_size: int, eps: float
) -> HeadSystem:
    """The equations for [W, b] and G; a rank below B (an example twice) is read off the singular values."""
    left, values, right = torch.linalg.svd(gradient, full_matrices=False)
    rank = max(1, int((values[:batch_size] > eps * values[0]).sum()))
    scale = gradient.norm().clamp(min=1e-300)
    smallest = float(values[batch_size - 1] / scale)
    tail = float(values[rank:].norm() / scale)
    sums = float(gradient.sum(dim=0).norm() / scale)
    left, values, basis = left[:, :rank], values[:rank], right[:rank]
    ones = basis[:, -1]
    origin = ones / ones.square().sum().clamp(min=1e-300)
    directions = torch.linalg.svd(ones[None], full_matrices=True).Vh[1:].T
    target = batch_size * left * values
    return HeadSystem(
        target=target,
        head=weights @ basis.T,
        basis=basis,
        origin=origin,
        directions=directions,
        scale=float(batch_size * scale),
        outside=max(tail, sums),
        condition=float(values[0] / values[-1].clamp(min=1e-300)),
        smallest=smallest,
    )


def normal_equations(
    system: HeadSystem,
    free: Float[Tensor, "starts batch free"],
    rows: Float[Tensor, "starts batch rank"],
    errors: Float[Tensor, "starts batch classes"],
    defect: Float[Tensor, "starts classes rank"],
) -> tuple[Float[Tensor, "starts unknowns unknowns"], Float[Tensor, "starts unknowns"]]:
    """JᵀJ and Jᵀe of e = Rᵀ M - target in the free unknowns T, without J.

    Column (k, v) of J is R_k ⊗ d_v + ∂p_k/∂T_kv ⊗ M_k for directions d, and M_k · d_v = T_kv.
    """
    probs = torch.softmax(rows @ system.head.T, dim=2)
    turned = system.head @ system.directions
    moved = probs[..., None] * (turned - (probs @ turned)[:, :, None, :])
    cross = torch.einsum("nkc,nlcw->nklw", errors, moved)
    mixed = torch.einsum("nklw,nlv->nkvlw", cross, free)
    flat = moved.transpose(2, 3).flatten(1, 2)
    count, batch, width = free.shape
    curved = (flat @ flat.transpose(1, 2)).view(count, batch, width, batch, width)
    hessian = mixed + mixed.permute(0, 3, 4, 1, 2) + (rows @ rows.transpose(1, 2))[:, :, None, :, None] * curved
    gram = errors @ errors.transpose(1, 2)
    hessian.diagonal(dim1=2, dim2=4).add_(gram[..., None])
    slope = errors @ defect @ system.directions + torch.einsum("nkcv,nkc->nkv", moved, rows @ defect.transpose(1, 2))
    return hessian.reshape(count, batch * width, batch * width), slope.flatten(1)


def feature_error(
    system: HeadSystem, rows: Float[Tensor, "batch rank"], errors: Float[Tensor, "batch classes"], relative: float
) -> float:
    """The largest relative error of a row that an error of `relative`·‖G‖ in the gradient may have led to.

    To first order: that error over J's least singular value, and over the gradient's, by which Q turns.
    """
    size = float(rows.norm(dim=1).min())
    noise = relative * system.scale
    turned = noise / float(system.target.norm(dim=0).min().clamp(min=1e-300))
    if not system.directions.shape[1]:
        return turned
    free = (rows - system.origin) @ system.directions
    defect = errors.T @ rows - system.target
    hessian, _ = normal_equations(system, free[None], rows[None], errors[None], defect[None])
    least = float(torch.linalg.eigvalsh(hessian[0])[0].clamp(min=1e-300).sqrt())
    return noise / (least * size) + turned


def evaluate(
    system: HeadSystem, free: Float[Tensor, "starts batch free"], targets: Float[Tensor, "starts batch classes"]
) -> tuple[Tensor, ...]:
    """M, R and Rᵀ M - target."""
    rows = system.origin + free @ system.directions.T
    errors = torch.softmax(rows @ system.head.T, dim=2) - targets
    return rows, errors, errors.transpose(1, 2) @ rows - system.target


def total_errors(system: HeadSystem) -> Float[Tensor, "classes"]:
    """B ∂L/∂b, the errors of all examples together."""
    return system.target @ system.basis[:, -1]


def unknowns_of(
    system: HeadSystem, errors: Float[Tensor, "starts batch classes"]
) -> Float[Tensor, "starts batch free"]:
    """The unknowns that explain G the best with these errors."""
    rows = torch.linalg.pinv(errors.transpose(1, 2), rtol=1e-6) @ system.target
    free: Tensor = (rows - system.origin) @ system.directions
    return free
