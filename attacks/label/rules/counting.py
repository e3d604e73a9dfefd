"""Published rules that count labels: LLG, zero-shot batch label restoration, and iLRG.

Scores are one number a class: g_c = Σ_m ∂L/∂W[c,m] (weight form, of sum-of-features s_k = Σ_m h_k[m]) or
g_c = ∂L/∂b[c] (bias form, s_k = 1). Both are mean_k p_kc s_k - (1/B) Σ_{y_k = c} s_k.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attacks.label.rules.basic import MARGIN, lowest_again, prior_counts


@dataclass(frozen=True)
class LabelShare:
    """What a label adds to its class's score, and what the score is without any.

    Attributes:
        impact: of one label in a batch of B, negative where the features' sum is positive.
        offset: score of each absent class.
        floor: the least that this can be, below 0 where labels are smoothed.
    """

    impact: float
    offset: Float[Tensor, "classes"]
    floor: float = 0.0


def impact_of_scores(scores: Float[Tensor, "classes"], batch_size: int, label_smoothing: float = 0.0) -> LabelShare:
    """LLG from the gradient alone: impact (1/B) Σ_{g_c < 0} g_c (1 + 1/C), no offset (Wainakh et al. 2021).

    Right for a uniform softmax, as at initialisation: then Σ_{g_c < 0} g_c = -s̄ (1 - 1/C) if all C are not there.
    """
    scores = scores.double()
    impact = float(scores.clamp(max=0.0).sum()) / batch_size * (1.0 + 1.0 / len(scores))
    mean_sum = -impact * batch_size / (1.0 - label_smoothing)
    return LabelShare(impact, torch.zeros_like(scores), -mean_sum * label_smoothing / len(scores))


def share_of_reference(
    probs: Float[Tensor, "pictures classes"],
    sums: Float[Tensor, "pictures"],
    batch_size: int,
    label_smoothing: float = 0.0,
) -> LabelShare:
    """LLG* and LLG+: impact and offset on pictures of the server's own, random or auxiliary (Wainakh et al. 2021).

    The paper averages the scores of reference batches of one label, of each class in turn; for a linear head that
    average is -mean_k s_k (1 - p_kc) / B over pictures and classes, times its correction 1 + 1/C. The offset is the
    score that the same pictures give a class that labels none of them, mean_k p_kc s_k. Smoothing by ε, which the
    paper has not, leaves 1 - ε of a label and takes ε/C of the features' sum from every class.
    """
    probs, sums = probs.double(), sums.double()
    classes = probs.shape[1]
    impact = -float((sums[:, None] * (1.0 - probs)).mean()) / batch_size * (1.0 + 1.0 / classes)
    smoothed = float(sums.mean()) * label_smoothing / classes
    offset = (probs * sums[:, None]).mean(dim=0) - smoothed
    return LabelShare(impact * (1.0 - label_smoothing), offset, -smoothed)


def llg(scores: Float[Tensor, "classes"], batch_size: int, share: LabelShare) -> Int[Tensor, "batch"]:
    """LLG (Wainakh et al. 2021, algorithm 1): negative scores first, each once, then the lowest again and again.

    A label that is emitted takes the impact off its class; the offset is subtracted before the second phase. The
    first phase is right for non-negative features only, in the weight form; the bias form has no such need.
    """
    present = (scores < share.floor * (1.0 + MARGIN)).nonzero().flatten()
    return lowest_again(scores, present, batch_size, -share.impact, share.offset)


def zero_shot_counts(
    weight_grad: Float[Tensor, "classes features"],
    mean_probs: Float[Tensor, "classes"],
    mean_sum: float,
    batch_size: int,
    label_smoothing: float = 0.0,
) -> Float[Tensor, "classes"]:
    """n̂_c = B (p̂_c - Σ_m ∂L/∂W[c,m] / ō), real-valued (Geng et al. 2021), less what label smoothing adds.

    p̂ and ō = mean_k Σ_m h_k[m] come from pictures of the server's own. Exact where every example has the same sum of
    features and p̂ = p̄; a sum near zero, as LayerNorm makes it, magnifies every error.

    Raises:
        ValueError: ō is zero, or the labels are smoothed away.
    """
    if mean_sum == 0.0:
        raise ValueError("features that sum to zero tell nothing of the labels")
    return prior_counts(weight_grad.double().sum(dim=1) / mean_sum, mean_probs, batch_size, label_smoothing)


def ilrg_counts(
    head_weight: Float[Tensor, "classes features"],
    head_bias: Float[Tensor, "classes"],
    weight_grad: Float[Tensor, "classes features"],
    bias_grad: Float[Tensor, "classes"],
    batch_size: int,
    label_smoothing: float = 0.0,
) -> Float[Tensor, "classes"]:
    """iLRG (Ma et al. 2023): ĥ_c = ∂L/∂W[c] / ∂L/∂b[c], P_c = softmax(W ĥ_c + b), n̂ by pseudo-inverse, real-valued.

    Solved for all C classes: Σ_j n_j P_j[c] - (1 - ε) n_c = B (∂L/∂b[c] + ε/C) and Σ_c n_c = B. Exact where all
    examples share one feature; ĥ_c is near its class's mean where the class's own label outweighs p̄_c.
    """
    bias_grad, weight_grad = bias_grad.double(), weight_grad.double()
    classes = len(bias_grad)
    safe = torch.where(bias_grad.abs() < 1e-30, torch.full_like(bias_grad, 1e-30), bias_grad)
    embeddings = weight_grad / safe[:, None]
    probs = torch.softmax(embeddings @ head_weight.double().T + head_bias.double(), dim=1)
    system = probs.T - (1.0 - label_smoothing) * torch.eye(classes, dtype=torch.float64, device=probs.device)
    known = batch_size * (bias_grad + label_smoothing / classes)
    system = torch.cat([system, torch.ones(1, classes, dtype=torch.float64, device=probs.device)])
    known = torch.cat([known, known.new_tensor([float(batch_size)])])
    counts: Tensor = torch.linalg.pinv(system) @ known
    return counts
