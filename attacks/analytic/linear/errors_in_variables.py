"""Patches behind noise: both sides of Gᵀ X = A are off, and what the noise hides is completed from public images."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

LEAST_ROW = 2.0
"""Of the energy of noise alone, from which a row of G tells of its patch."""


@dataclass(frozen=True)
class NoisyRows:
    """The shared rows G with the standard deviation of the noise in each of their entries."""

    token_grads: Float[Tensor, "tokens width"]
    std: float


@dataclass(frozen=True)
class CompletedPatches:
    """The rows X.

    Attributes:
        patches: X, float64.
        rank: directions that were solved for; in the others X is the centre.
    """

    patches: Float[Tensor, "tokens pixels"]
    rank: int


def complete_patches(
    rows: NoisyRows, patch_weight_grad: Float[Tensor, "width pixels"], centre: Float[Tensor, "tokens pixels"]
) -> CompletedPatches:
    """Solve Gᵀ X = A in the directions that stand out of the noise; leave the centre in all others.

    Errors in variables (Fuller 1987): noise adds σ²·width to each squared singular value of G, which draws least
    squares towards zero. It is taken off, and directions below the largest singular value of noise alone,
    σ(√width + √tokens) (Marchenko and Pastur 1967), are left out, as are those that generalised cross-validation of
    the equations drops. Rows of G count by their norms, as in `solve_patches`; those of noise alone not at all.

    Args:
        centre: the mean of public images, as patches.
    """
    patches = centre.double().clone()
    squares = rows.token_grads.double().square().sum(dim=1)
    told = squares > LEAST_ROW * rows.token_grads.shape[1] * rows.std**2
    if not bool(told.any()):
        return CompletedPatches(patches, 0)
    G, A = rows.token_grads.double()[told], patch_weight_grad.double()
    tokens, width = G.shape
    scale = squares[told].sqrt()
    left, singular, right = torch.linalg.svd(G / scale[:, None], full_matrices=False)
    noise = width * rows.std**2 * (left.square().T @ scale.pow(-2))
    stands_out = singular.square() > noise * (1.0 + math.sqrt(tokens / width)) ** 2
    coefficients = right @ A
    rank = min(int(stands_out.long().cumprod(0).sum()), _rank(coefficients, A, width))
    kept = left[:, :rank]
    gain = singular[:rank] / (singular[:rank].square() - noise[:rank])
    scaled = scale[:, None] * patches[told]
    solved = kept @ (gain[:, None] * coefficients[:rank] - kept.T @ scaled)
    patches[told] += solved / scale[:, None]
    return CompletedPatches(patches, rank)


def _rank(
    coefficients: Float[Tensor, "rank pixels"], patch_weight_grad: Float[Tensor, "width pixels"], width: int
) -> int:
    """By generalised cross-validation, from none to all directions."""
    energies = coefficients.square().sum(dim=1)
    whole = float(patch_weight_grad.square().sum())
    tails = (whole - torch.cat([energies.new_zeros(1), energies.cumsum(0)])).clamp(min=0.0)
    spare = width - torch.arange(len(tails), dtype=torch.float64, device=tails.device)
    return int(torch.where(spare > 0, tails / spare.clamp(min=1.0).square(), torch.inf).argmin())
