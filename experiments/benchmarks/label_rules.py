"""Every label rule on batches of one head, and how much of the truth it found."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attacks.label.counts.possible import least_counts
from attacks.label.counts.residual import CountCertificate, certify_counts
from attacks.label.public_images.moments import ClassMoments, fit_counts
from attacks.label.rules import basic, counting
from attacks.label.rules.membership import rlg
from experiments.benchmarks.heads import draw, head_gradients

CERTIFIABLE = 16
"""Larger batches are not put to the residual test: CertifiedLabels' default."""


@dataclass(frozen=True)
class KnownHead:
    """What batches are made of, and what the server knows besides their gradients.

    Attributes:
        labels: of `features`, below `classes`.
        mean_probs: over public pictures.
        random_features: of pictures of noise.
        moments: of public pictures with labels; None where there are too few.
    """

    weight: Float[Tensor, "outputs width"]
    bias: Float[Tensor, "outputs"]
    features: Float[Tensor, "pictures width"]
    labels: Int[Tensor, "pictures"]
    classes: int
    mean_probs: Float[Tensor, "outputs"]
    random_features: Float[Tensor, "noise width"]
    moments: ClassMoments | None = None


@dataclass(frozen=True)
class HeadBatch:
    """A head's gradient with its truth, labels sorted, and what the server knows besides, as `KnownHead` has it."""

    labels: Tensor
    weight: Tensor
    bias: Tensor
    weight_grad: Tensor
    bias_grad: Tensor
    mean_probs: Tensor
    random_features: Tensor
    moments: ClassMoments | None = None

    @property
    def size(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class RuleResult:
    """`overlap` is Σ_c min(n̂_c, n_c) / B; for rules that name sets it is that of the sets, over the larger."""

    exact: bool
    overlap: float
    seconds: float
    certified: bool = False


def measure(
    known: KnownHead, kind: str, sizes: Iterable[int], batches: int, rng: torch.Generator, rules: Iterable[str]
) -> list[dict[str, Any]]:
    """These rules on the same batches, the mean of each at each size; sizes that cannot be drawn are left out."""
    rows: list[dict[str, Any]] = []
    for size in sizes:
        found: dict[str, list[RuleResult]] = defaultdict(list)
        for _ in range(batches):
            chosen = draw(known.labels, size, known.classes, kind, rng)
            if chosen is None:
                continue
            batch = batch_of(known, chosen)
            for rule in rules:
                outcome = run_rule(rule, batch, rng)
                if outcome is not None:
                    found[rule].append(outcome)
        rows += [{"rule": rule, "batch_size": size, **_summary(outcomes)} for rule, outcomes in found.items()]
    return rows


def batch_of(known: KnownHead, chosen: Int[Tensor, "batch"]) -> HeadBatch:
    """The head's gradient of these pictures with mean cross-entropy."""
    chosen = chosen[known.labels[chosen].argsort()]
    features, labels = known.features[chosen], known.labels[chosen]
    gradients = head_gradients(features, known.weight, known.bias, labels)
    head = labels, known.weight, known.bias, *gradients
    return HeadBatch(*head, known.mean_probs, known.random_features, known.moments)


def _summary(outcomes: Sequence[RuleResult]) -> dict[str, Any]:
    return {
        "batches": len(outcomes),
        "exact": fmean(outcome.exact for outcome in outcomes),
        "overlap": fmean(outcome.overlap for outcome in outcomes),
        "certified": fmean(outcome.certified for outcome in outcomes),
        "wrongly_certified": sum(outcome.certified and not outcome.exact for outcome in outcomes),
        "seconds": fmean(outcome.seconds for outcome in outcomes),
    }


def run_rule(rule: str, batch: HeadBatch, rng: torch.Generator) -> RuleResult | None:
    """Labels by a rule; None where it does not apply."""
    start = time.perf_counter()
    found = RULES[rule](batch, rng)
    seconds = time.perf_counter() - start
    if found is None:
        return None
    labels, truth = (found.labels, batch.labels) if isinstance(found, CountCertificate) else (found, batch.labels)
    if rule in SETS:
        truth = truth.unique()
    classes = len(batch.bias)
    shared = torch.minimum(torch.bincount(labels, minlength=classes), torch.bincount(truth, minlength=classes)).sum()
    exact, overlap = torch.equal(labels, truth), float(shared) / max(len(labels), len(truth))
    return RuleResult(exact, overlap, seconds, isinstance(found, CountCertificate) and found.certified)


def _llg(batch: HeadBatch, bias: bool, reference: bool) -> Tensor:
    scores = batch.bias_grad if bias else batch.weight_grad.sum(dim=1)
    if not reference:
        return counting.llg(scores, batch.size, counting.impact_of_scores(scores, batch.size))
    sums = torch.ones(len(batch.random_features)) if bias else batch.random_features.sum(dim=1)
    probs = batch.mean_probs.expand(len(sums), -1)
    return counting.llg(scores, batch.size, counting.share_of_reference(probs, sums, batch.size))


def _random_prior(batch: HeadBatch, rng: torch.Generator) -> Tensor:
    probs = F.linear(batch.random_features, batch.weight, batch.bias).softmax(dim=1).mean(dim=0)
    return basic.bias_prior(batch.bias_grad, probs, batch.size)


def _zlg(batch: HeadBatch, rng: torch.Generator) -> Tensor:
    mean_sum = float(batch.random_features.sum(dim=1).mean())
    return basic.labels_of(
        counting.zero_shot_counts(batch.weight_grad, batch.mean_probs, mean_sum, batch.size), batch.size
    )


def _class_moments(batch: HeadBatch, rng: torch.Generator) -> Tensor | None:
    if batch.moments is None:
        return None
    least = least_counts(batch.bias_grad, batch.size)
    counts = fit_counts(batch.moments, batch.weight_grad, batch.bias_grad, least, batch.size).counts
    return torch.repeat_interleave(torch.arange(len(counts)), counts)


def _ilrg(batch: HeadBatch, rng: torch.Generator) -> Tensor:
    counts = counting.ilrg_counts(batch.weight, batch.bias, batch.weight_grad, batch.bias_grad, batch.size)
    return basic.labels_of(counts, batch.size)


def _rlg(batch: HeadBatch, rng: torch.Generator) -> Tensor | None:
    return rlg(batch.weight_grad, batch.size) if batch.size < len(batch.bias) - 1 else None


def _certified(batch: HeadBatch, rng: torch.Generator) -> CountCertificate | None:
    if batch.size > min(len(batch.bias) - 1, batch.weight.shape[1], CERTIFIABLE):
        return None
    start = basic.prior_counts(batch.bias_grad, batch.mean_probs, batch.size)
    return certify_counts(
        batch.weight, batch.bias, batch.weight_grad, batch.bias_grad, start, batch.size, eps=2.0**-23, rng=rng
    )


def _no_repeats(rule: Callable[[Tensor, int], Tensor]) -> "Rule":
    return lambda batch, rng: rule(batch.weight_grad, batch.size) if batch.size <= len(batch.bias) else None


Rule = Callable[[HeadBatch, torch.Generator], Tensor | CountCertificate | None]
RULES: dict[str, Rule] = {
    "idlg": lambda batch, rng: basic.idlg(batch.weight_grad) if batch.size == 1 else None,
    "gradinversion": _no_repeats(basic.gradinversion),
    "gradinversion_sum": _no_repeats(basic.gradinversion_sum),
    "rlg": _rlg,
    "bias_sign": lambda batch, rng: basic.bias_sign(batch.bias_grad),
    "llg, gradient alone": lambda batch, rng: _llg(batch, bias=False, reference=False),
    "llg": lambda batch, rng: _llg(batch, bias=False, reference=True),
    "llg_bias, gradient alone": lambda batch, rng: _llg(batch, bias=True, reference=False),
    "llg_bias": lambda batch, rng: _llg(batch, bias=True, reference=True),
    "zlg": _zlg,
    "ilrg": _ilrg,
    "bias_corrected": lambda batch, rng: basic.bias_corrected(batch.bias_grad, batch.size),
    "bias_prior, random pictures": _random_prior,
    "bias_prior": lambda batch, rng: basic.bias_prior(batch.bias_grad, batch.mean_probs, batch.size),
    "class_moments": _class_moments,
    "certified": _certified,
}
SETS = ("rlg", "bias_sign")
