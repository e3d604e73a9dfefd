"""Counts that a head's gradient itself confirms, with the feature of every example.

Given counts leave a small system of equations for the features (`attacks.label.head_system`). The right ones solve
it up to the rounding of the gradient; wrong ones do not, so that a solution proves the counts.
"""

from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attacks.label.head_system import HeadSystem, feature_error, head_system, solve_rows
from attacks.label.neighbours import neighbours

TOLERANCE = 32.0
"""Residuals accepted, in roundings of the shared gradient (right counts leave 1 … 30, wrong ones above 1e3)."""
MAX_TOLERANCE = 3e-5
"""A gradient whose own inconsistency asks for more is not clean: wrong counts came down to 1e-4 on overfitted heads."""
VISIBLE = 1000.0
"""An example must contribute this multiple of the tolerance, or one more or less could not be told."""
PROMISING = 1e-2
"""Right counts whose solution was not quite reached stay below this; they get a longer search."""
CHUNK = 16
FIRST, QUICK, LONG = (8, 80), (4, 40), (16, 400)
"""Starts and iterations for the likeliest counts, for their neighbours, and for promising ones."""


@dataclass(frozen=True)
class CountCertificate:
    """Counts and what speaks for them; the nearest that was found where `certified` is False.

    Attributes:
        labels: sorted; the order of `features`' rows, which are in no order within a class.
        features: the input of the head for each example, float64.
        residual: ‖(1/B) Rᵀ[H, 1] - G‖ / ‖G‖ at `counts`.
        tried: count vectors for which it was computed.
        tolerance: what the residual had to fall below.
        condition: largest over smallest singular value of the gradient.
        feature_error: how far off a feature may be, relative to its size, to first order: what is certified are the
            counts; pictures that the head scores nearly alike leave their features open.
        reason: why not, where `certified` is False.
    """

    counts: Int[Tensor, "classes"]
    labels: Int[Tensor, "batch"]
    features: Float[Tensor, "batch features"]
    residual: float
    certified: bool
    tried: int
    tolerance: float
    condition: float
    feature_error: float
    reason: str = ""


def certify_counts(
    head_weight: Float[Tensor, "classes features"],
    head_bias: Float[Tensor, "classes"],
    weight_grad: Float[Tensor, "classes features"],
    bias_grad: Float[Tensor, "classes"],
    start_counts: Float[Tensor, "classes"] | Int[Tensor, "classes"],
    batch_size: int,
    label_smoothing: float = 0.0,
    max_neighbours: int = 128,
    *,
    eps: float | None = None,
    rng: torch.Generator | None = None,
    excluded: Int[Tensor, "classes"] | None = None,
) -> CountCertificate:
    """The counts nearest to `start_counts` (real-valued ones order the search) that explain the gradient.

    Args:
        eps: relative rounding of the gradient as it was shared; None takes that of `weight_grad`'s dtype.
        rng: draws the starts of the solver; None seeds one with 0.
        excluded: counts that are not tried. With the true ones, whatever is certified is wrong.

    Raises:
        ValueError: a batch for which wrong counts could explain the gradient: B > min(C - 1, D).
    """
    classes, width = weight_grad.shape
    if not 1 <= batch_size <= min(classes - 1, width):
        raise ValueError(f"{batch_size} examples: certifiable are 1 to {min(classes - 1, width)}")
    rng = torch.Generator().manual_seed(0) if rng is None else rng
    eps = torch.finfo(weight_grad.dtype).eps if eps is None else eps
    weights, gradient = _joined(head_weight, head_bias), _joined(weight_grad, bias_grad)
    system = head_system(weights, gradient, batch_size, eps)
    tolerance = max(1e-9, TOLERANCE * eps, TOLERANCE / 4 * system.outside)
    tolerance_met = tolerance <= MAX_TOLERANCE
    near = neighbours(start_counts.double(), batch_size, max_neighbours)
    candidates = (counts for counts in near if excluded is None or not torch.equal(counts, excluded))
    reason = "no counts near the estimate explain the gradient"
    if not tolerance_met:
        reason = f"{system.outside:.2g} of the gradient is no head's gradient of {batch_size} examples: perturbed"
    best, tried = None, 0
    group, effort = [next(candidates)], FIRST
    while group:
        found = _best_of(system, group, label_smoothing, effort, 0.1 * tolerance, rng)
        if tolerance_met and tolerance <= found.residual < PROMISING:
            again = _best_of(system, [found.counts], label_smoothing, LONG, 0.1 * tolerance, rng)
            found = min(found, again, key=lambda one: one.residual)
        tried += len(group)
        best = found if best is None or found.residual < best.residual else best
        if best.residual < tolerance or not tolerance_met:
            break
        group, effort = list(islice(candidates, CHUNK)), QUICK
    assert best is not None
    residual = max(best.residual, system.outside)
    certified = residual < tolerance and tolerance_met
    if certified and best.least <= VISIBLE * tolerance:
        certified, reason = False, "an example leaves no trace in the gradient: its label cannot be told"
    return CountCertificate(
        counts=best.counts,
        labels=best.labels,
        features=best.features,
        residual=residual,
        certified=certified,
        tried=tried,
        tolerance=tolerance,
        condition=system.condition,
        feature_error=feature_error(system, best.rows, best.errors, max(residual, eps)),
        reason="" if certified else reason,
    )


@dataclass(frozen=True)
class _Found:
    """One count vector with its solution; `least` is the smallest contribution of an example to the gradient."""

    counts: Int[Tensor, "classes"]
    labels: Int[Tensor, "batch"]
    features: Float[Tensor, "batch features"]
    residual: float
    least: float
    rows: Float[Tensor, "batch rank"]
    errors: Float[Tensor, "batch classes"]


def _best_of(
    system: HeadSystem,
    group: list[Int[Tensor, "classes"]],
    label_smoothing: float,
    effort: tuple[int, int],
    enough: float,
    rng: torch.Generator,
) -> _Found:
    """The counts of the group that explain the gradient best."""
    classes = torch.arange(len(group[0]))
    labels = torch.stack([torch.repeat_interleave(classes, counts) for counts in group])
    solution = solve_rows(system, labels, label_smoothing, *effort, enough, rng)
    index = int(solution.residual.argmin())
    rows, errors = solution.rows[index], solution.errors[index]
    contribution = errors.norm(dim=1) * rows.norm(dim=1) / system.scale
    features = (rows @ system.basis)[:, :-1]
    left, least = float(solution.residual[index]), float(contribution.min())
    return _Found(group[index], labels[index], features, left, least, rows, errors)


def _joined(weight: Float[Tensor, "classes features"], bias: Float[Tensor, "classes"]) -> Tensor:
    return torch.cat([weight.detach(), bias.detach()[:, None]], dim=1).double().cpu()
