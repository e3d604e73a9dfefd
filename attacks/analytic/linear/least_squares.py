"""The linear systems of the closed forms: Gᵀ X = A for the rows X, given noisy G and A."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class PatchSolution:
    """The rows X of Gᵀ X = A, and what the system itself says about them.

    Attributes:
        patches: X, float64.
        residual: ‖Gᵀ X - A‖ / ‖A‖. It cannot fall below rounding unless one X explains every equation.
        rank: singular directions that were used.
        condition: largest over smallest singular value of (equilibrated) G, all of them.
        rcond: the relative cut between used and dropped singular values.
        expected_mse: mean squared error of an entry of X, were the residual white noise in the (weighed)
            equations: σ² tr((G Gᵀ)⁻¹) / tokens with σ² = ‖Gᵀ X - A‖² / (pixels·(width - tokens)). NaN without full rank
            or spare equations: what lies in the null space leaves no trace in the residual. Far too small where A is
            of several nearly alike pictures, whose mean leaves next to no residual.
        noise: relative standard deviation of the noise in each equation, as assumed.
        noise_variance: σ², NaN where expected_mse is.
    """

    patches: Float[Tensor, "tokens pixels"]
    residual: float
    rank: int
    condition: float
    rcond: float
    expected_mse: float
    noise: Float[Tensor, " width"]
    noise_variance: float


def solve_patches(
    token_grads: Float[Tensor, "tokens width"],
    patch_weight_grad: Float[Tensor, "width pixels"],
    rcond: float | None = None,
    equilibrate: bool = True,
    weigh: bool = True,
    eps: float | None = None,
) -> PatchSolution:
    """Solve ∂L/∂W_p = Gᵀ X for the patches X in float64.

    Exact for one image when the gradient of every position embedding is shared and `tokens <= width`;
    otherwise the solution of least Σ_n ‖G_n‖² ‖x_n‖², without `equilibrate` of least norm. By a thin SVD, never by
    normal equations.

    Args:
        rcond: singular values below rcond·largest are dropped; None chooses by generalised cross-validation.
        equilibrate: scale the rows of G to unit norm first. Without effect where the solution is the only one; under
            noise it keeps tokens with small gradients from being cut away first.
        weigh: weigh the equations by their noise where the residual says that it is not the same in all. A
            float32 client rounds its sum ∂L/∂W_p[j] = Σ_n G[n, j] p_n by an error in proportion to ‖G[:, j]‖;
            added noise, and the rounding of a weight delta, are the same in every equation.
        eps: relative rounding of both gradients where nothing else is in them. As many tokens as the model is wide
            leave cross-validation no equation to judge the last direction by: all are kept if it is above rounding,
            which behind LayerNorm it is not, since there the rows of G sum to zero.
    """
    G, A = token_grads.double(), patch_weight_grad.double()
    uniform = torch.ones(G.shape[1], dtype=G.dtype, device=G.device)
    plain = _solve(G, A, uniform, rcond, equilibrate, eps)
    norms = G.norm(dim=0)
    largest = float(norms.max())
    if not weigh or len(G) >= G.shape[1] or largest == 0.0:
        return plain.solution
    weighed = _solve(G, A, norms.clamp(min=1e-3 * largest), rcond, equilibrate, eps)
    likelier = weighed.deviance < plain.deviance and weighed.solution.rank >= plain.solution.rank
    return weighed.solution if likelier else plain.solution


@dataclass(frozen=True)
class _Candidate:
    """A solution under one model of the noise, and -2/pixels times its log-likelihood up to a constant."""

    solution: PatchSolution
    deviance: float


def _solve(
    G: Float[Tensor, "tokens width"],
    A: Float[Tensor, "width pixels"],
    noise: Float[Tensor, "width"],
    rcond: float | None,
    equilibrate: bool,
    eps: float | None,
) -> _Candidate:
    """Least squares where equation j has noise of standard deviation σ·noise[j], with σ unknown."""
    tokens, width = G.shape
    tiny = torch.finfo(torch.float64).tiny
    row_norms = (G / noise).norm(dim=1)
    scale = torch.where(row_norms > 0, row_norms, 1.0) if equilibrate else torch.ones_like(row_norms)
    left, singular, right = torch.linalg.svd((G / noise / scale[:, None]).T, full_matrices=False)
    right_hand = A / noise[:, None]
    coefficients = left.T @ right_hand
    energies = coefficients.square().sum(dim=1)
    outside = float((right_hand - left @ coefficients).square().sum())
    usable = int((singular > singular[0] * torch.finfo(torch.float64).eps * max(tokens, width)).sum())
    above = eps is not None and bool(singular[-1] > singular[0] * eps * width)
    if rcond is None and above and tokens == width == usable:
        rank = usable
    elif rcond is None:
        rank = _rank_by_cross_validation(energies[:usable], outside + float(energies[usable:].sum()), width)
    else:
        rank = min(usable, int((singular > rcond * singular[0]).sum()))
    back = right[:rank].T / singular[:rank]
    patches = (back @ coefficients[:rank]) / scale[:, None]
    squared = outside + float(energies[rank:].sum())
    expected_mse = variance = math.nan
    if rank == tokens < width:
        variance = squared / (A.shape[1] * (width - tokens))
        expected_mse = variance * float((back.square().sum(dim=1) / scale.square()).mean())
    last = float(singular[-1])
    solution = PatchSolution(
        patches=patches,
        residual=float((G.T @ patches - A).norm() / A.norm().clamp(min=tiny)),
        rank=rank,
        condition=float(singular[0]) / last if last > 0 else math.inf,
        rcond=float(singular[rank - 1] / singular[0]) if rank else 1.0,
        expected_mse=expected_mse,
        noise=noise,
        noise_variance=variance,
    )
    return _Candidate(solution, width * math.log(max(squared, tiny)) + 2.0 * float(noise.log().sum()))


def _rank_by_cross_validation(energies: Float[Tensor, "rank"], outside: float, width: int) -> int:
    """The rank k that minimises ‖residual_k‖² / (width - k)² (Golub, Heath and Wahba 1979).

    A direction is kept when it explains more than its share of the noise; in exact arithmetic that is every
    direction. With as many directions as equations the last one has no residual to be judged by: it is dropped here.
    """
    if len(energies) == 0:
        return 0
    tails = energies.flip(0).cumsum(0).flip(0) - energies + outside
    spare = width - torch.arange(1, len(energies) + 1, dtype=torch.float64, device=energies.device)
    scores = torch.where(spare > 0, tails.clamp(min=0.0) / spare.clamp(min=1.0).square(), torch.inf)
    return int(scores.argmin()) + 1
