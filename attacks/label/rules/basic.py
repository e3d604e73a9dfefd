"""Label rules: from the head's gradient to a sorted multiset of classes.

For mean cross-entropy, mean softmax p̄ and class counts n of a batch of B:
∂L/∂b = p̄ - ((1 - ε)·n/B + ε/C), with label smoothing ε, and ∂L/∂W = (1/B) Σ_k (p_k - y_k) h_kᵀ.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

MARGIN = 0.01
"""Share of ε/C: an absent class of p = 0 has -ε/C up to rounding, that of half precision and of a batch's sum too."""


def head_gradient(gradient: Mapping[str, Tensor], names: Sequence[str]) -> Tensor | None:
    """The gradient of the head as if it were the only one, or None where none was shared.

    A model that averages the logits of m heads (distilled DeiT) has ∂L/∂b / m at each of them: their sum is
    that of a single head. Where some are withheld the others stand in for them.
    """
    shared = [gradient[name] for name in names if name in gradient]
    return torch.stack(shared).mean(dim=0) * len(names) if shared else None


def idlg(weight_grad: Float[Tensor, "classes features"]) -> Int[Tensor, "1"]:
    """argmin_c Σ_m ∂L/∂W[c, m], for one example: as the code of Zhao et al. 2020 has it.

    Right where Σ_m h[m] > 0, as after a ReLU, while p_y < 1 - ε of a label smoothed by ε; unreliable on LayerNorm
    features, whose sign is anybody's.
    """
    return weight_grad.sum(dim=1).argmin().reshape(1)


def gradinversion(weight_grad: Float[Tensor, "classes features"], batch_size: int) -> Int[Tensor, "batch"]:
    """The B classes of smallest min_m ∂L/∂W[c, m] (Yin et al. 2021): no class twice, features non-negative.

    Raises:
        ValueError: a batch larger than the number of classes.
    """
    if batch_size > len(weight_grad):
        raise ValueError(f"a batch of {batch_size} repeats some of {len(weight_grad)} classes")
    return weight_grad.min(dim=1).values.topk(batch_size, largest=False).indices.sort().values


def gradinversion_sum(weight_grad: Float[Tensor, "classes features"], batch_size: int) -> Int[Tensor, "batch"]:
    """The B classes of smallest Σ_m ∂L/∂W[c, m]: iDLG's sum in `gradinversion`'s place, compared by Yin et al. 2021.

    Raises:
        ValueError: a batch larger than the number of classes.
    """
    return gradinversion(weight_grad.sum(dim=1, keepdim=True), batch_size)


def bias_sign(
    bias_grad: Float[Tensor, "classes"], label_smoothing: float = 0.0, rounding: float = 0.0
) -> Int[Tensor, "labels"]:
    """The classes whose gradient no absent class could have: {c : ∂L/∂b[c] < -ε/C} but for rounding, a set.

    Every class in it was in the batch; a class that was there is missed where (1 - ε) n_c/B does not exceed p̄_c.

    Args:
        rounding: absolute, of the gradient as it was shared, beside `MARGIN`.
    """
    floor = (1.0 + MARGIN) * label_smoothing / len(bias_grad) + rounding
    return (bias_grad < -floor).nonzero().flatten()


def bias_corrected(
    bias_grad: Float[Tensor, "classes"], batch_size: int, label_smoothing: float = 0.0, rounding: float = 0.0
) -> Int[Tensor, "batch"]:
    """One of each class of `bias_sign`, then the most negative again and again, each taking its share.

    A label's share of the gradient is -(1 - ε)/B. Right near uniform p̄, as at initialisation.
    """
    present = bias_sign(bias_grad, label_smoothing, rounding)
    return lowest_again(bias_grad, present, batch_size, (1.0 - label_smoothing) / batch_size)


def lowest_again(
    scores: Float[Tensor, "classes"],
    present: Int[Tensor, "labels"],
    batch_size: int,
    share: float,
    offset: Float[Tensor, "classes"] | None = None,
) -> Int[Tensor, "batch"]:
    """One of each class that is present, the lowest first, then the lowest class again and again.

    Args:
        share: what a label adds to its class's score once it is named.
        offset: of each class, taken off before the second phase.
    """
    rest = scores.double().clone()
    named = present[rest[present].argsort()][:batch_size].tolist()
    rest[named] += share
    if offset is not None:
        rest -= offset
    while len(named) < batch_size:
        label = int(rest.argmin())
        rest[label] += share
        named.append(label)
    return torch.tensor(sorted(named))


def prior_counts(
    bias_grad: Float[Tensor, "classes"],
    mean_probs: Float[Tensor, "classes"],
    batch_size: int,
    label_smoothing: float = 0.0,
) -> Float[Tensor, "classes"]:
    """n̂ = B (p̂ - ∂L/∂b - ε/C) / (1 - ε), real-valued: the counts themselves where p̂ = p̄.

    Raises:
        ValueError: labels smoothed away altogether.
    """
    if label_smoothing >= 1.0:
        raise ValueError("label_smoothing=1 leaves nothing of the labels")
    uniform = label_smoothing / len(bias_grad)
    return batch_size * (mean_probs.double() - bias_grad.double() - uniform) / (1.0 - label_smoothing)


def bias_prior(
    bias_grad: Float[Tensor, "classes"],
    mean_probs: Float[Tensor, "classes"],
    batch_size: int,
    label_smoothing: float = 0.0,
) -> Int[Tensor, "batch"]:
    """`prior_counts` rounded by largest remainder to B labels.

    Exact whenever ‖p̄ - p̂‖∞ < (1 - ε)/(2B), where p̂ is the mean softmax over pictures that need no labels, for one
    batch, or batches of one size whose steps count alike: else an example weighs by its step's factor over its batch.
    """
    return labels_of(prior_counts(bias_grad, mean_probs, batch_size, label_smoothing), batch_size)


def labels_of(counts: Float[Tensor, "classes"], batch_size: int) -> Int[Tensor, "batch"]:
    """Real-valued counts as B sorted labels, by largest remainder."""
    rounded = largest_remainder(counts, batch_size)
    return torch.repeat_interleave(torch.arange(len(rounded)), rounded)


def largest_remainder(shares: Float[Tensor, "classes"], total: int) -> Int[Tensor, "classes"]:
    """Non-negative integers that sum to `total`, the nearest to `shares` in that sense; of any size of `shares`.

    What is missing goes to the largest remainders, one to each before any has two; what is too much is taken from the
    smallest in the same way, from classes that still have some.
    """
    # A client decides how large the shares are. Above `total` all lose alike, down to it; above 2^52 there are no ones.
    shares = shares.double().cpu().clamp(0.0, 2.0**52)
    shares = (shares - (shares.max().floor() - total).clamp(min=0.0)).clamp(min=0.0)
    counts = shares.floor().long()
    missing = total - int(counts.sum())
    if missing >= 0:
        rounds, rest = divmod(missing, len(counts))
        counts += rounds
        counts[(shares - counts).argsort(descending=True, stable=True)[:rest]] += 1
        return counts

    def lowered(rounds: int) -> Int[Tensor, "classes"]:
        return (counts - rounds).clamp(min=0)

    counts = lowered(bisect_left(range(total + 1), True, key=lambda rounds: int(lowered(rounds).sum()) < total) - 1)
    excess = torch.where(counts > 0, shares - counts, torch.inf)
    counts[excess.argsort(stable=True)[: int(counts.sum()) - total]] -= 1
    return counts
