"""Counts that a head's gradient itself confirms, with the feature of every example.

The gradient of the bias leaves some counts possible, and no others (`attacks.label.counts.possible`); that of the
weight no class without a direction of its own in it. Each of them leaves a small system of equations for the features
(`attacks.label.head.system`), which the right ones solve up to the rounding of the gradient. That a wrong one does not
is not taken for granted: all of them are tried.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attacks.label.counts.possible import least_counts, nearest_possible, number_possible, possible_counts
from attacks.label.counts.search import CLEAR, Found, Search
from attacks.label.head.system import HeadSystem, feature_error, head_system, joined
from attacks.label.rules.membership import SLACK, negative_alone

MAX_TOLERANCE = 3e-5
"""A gradient whose own inconsistency asks for more is not clean."""
VISIBLE = 1000.0
"""An example must contribute this multiple of the tolerance, or one more or less could not be told."""
MARGIN = 100.0
"""Other counts must miss the gradient by this multiple of the tolerance, and of what the certified ones miss it by."""
FULL_RANK, SEEN = 100.0, 3.0
"""So many tolerances the gradient's B-th singular value must have for features to lie in its row space, and for counts
to be told from others, uncertified."""
MAX_FEATURE_ERROR = 0.1
"""Where features are less certain than this the equations are too flat to tell counts apart."""
REACHED = 0.5
"""Share of the starts that must come to the solution: one that few find tells that others may have been missed."""
MOST_CLASSES = 128
"""For each of which is asked whether it may be in the batch, by a linear programme."""
QUICK_STARTS, QUICK = 4, 60
"""And iterations of each, where nothing can be told."""
SOLVABLE = 5e-3
"""Tolerance up to which counts are told from others, though not certified: float32 rounds errors of a thousandth so."""


@dataclass(frozen=True)
class CountCertificate:
    """Counts and what speaks for them; the nearest that was found where `certified` is False.

    Attributes:
        labels: sorted; the order of `features`' rows, which are in no order within a class.
        features: the input of the head for each example, float64.
        residual: ‖(1/B) Rᵀ[H, 1] - G‖ / ‖G‖ at `counts`.
        possible: count vectors that the gradient leaves.
        tried: those for which the residual was computed.
        next: the least residual of all others; infinite where there are none.
        tolerance: what the residual had to fall below.
        share: of the solver's starts, those that came to the solution.
        condition: largest over smallest singular value of the gradient.
        feature_error: how far off a feature may be, relative to its size, to first order: what is certified are the
            counts; images that the head scores nearly alike leave their features open.
        reason: what the certificate says, or why there is none.
        settled: the search for features of all others.
    """

    counts: Int[Tensor, "classes"]
    labels: Int[Tensor, "batch"]
    features: Float[Tensor, "batch features"]
    residual: float
    certified: bool
    possible: int
    tried: int
    next: float
    tolerance: float
    share: float
    condition: float
    feature_error: float
    reason: str
    settled: bool

    @property
    def alone(self) -> bool:
        """No other counts that were tried explain the gradient, or nearly: right mostly, certified or not."""
        clear = self.next >= CLEAR * max(self.tolerance, self.residual)
        return self.residual < self.tolerance and clear and self.settled and self.tried == self.possible


def certify_counts(
    head_weight: Float[Tensor, "classes features"],
    head_bias: Float[Tensor, "classes"],
    weight_grad: Float[Tensor, "classes features"],
    bias_grad: Float[Tensor, "classes"],
    start_counts: Float[Tensor, "classes"] | Int[Tensor, "classes"],
    batch_size: int,
    label_smoothing: float = 0.0,
    max_candidates: int = 64,
    *,
    eps: float | None = None,
    bias_rounding: float = 0.0,
    rng: torch.Generator | None = None,
    excluded: Int[Tensor, "classes"] | None = None,
) -> CountCertificate:
    """The only possible counts that explain the gradient, or those nearest to `start_counts`, uncertified.

    Args:
        max_candidates: count vectors to try; where more are possible none is certified.
        eps: relative rounding of the gradient as it was shared; None takes that of `weight_grad`'s dtype.
        bias_rounding: absolute, of the gradient of the bias, beside `eps`.
        rng: draws the starts of the solver; None seeds one with 0.
        excluded: counts that are taken for impossible. With the true ones, whatever is certified is wrong.

    Raises:
        ValueError: a batch for which wrong counts could explain the gradient: B > min(C - 1, D).
    """
    classes, width = weight_grad.shape
    if not 1 <= batch_size <= min(classes - 1, width):
        raise ValueError(f"{batch_size} examples: certifiable are 1 to {min(classes - 1, width)}")
    rng = torch.Generator().manual_seed(0) if rng is None else rng
    eps = torch.finfo(weight_grad.dtype).eps if eps is None else eps
    weights, gradient = joined(head_weight, head_bias), joined(weight_grad, bias_grad)
    system = head_system(weights, gradient, batch_size, eps)
    tolerance = system.tolerance(eps)
    least = least_counts(bias_grad, batch_size, label_smoothing, max(bias_rounding, tolerance * float(gradient.norm())))
    by_bias = number_possible(least, batch_size)
    among = _present(system, least, batch_size, tolerance) if label_smoothing == 0.0 and by_bias > 1 else None
    possible = number_possible(least, batch_size, among)
    possible -= int(excluded is not None and _is_one(excluded, least, among))
    refusal = _unsolvable(system, batch_size, possible, max_candidates, tolerance)
    search = Search(system, label_smoothing, tolerance, rng)
    others: list[Found] = []
    if refusal:
        best = search.solved([nearest_possible(start_counts, least, batch_size, among)], QUICK_STARTS, QUICK)[0]
    else:
        every = possible_counts(least, batch_size, among)
        found = (n for n in every if excluded is None or not torch.equal(n, excluded))
        best, others = search.run(sorted(found, key=lambda n: float((n - start_counts).square().sum())))
        if tolerance > MAX_TOLERANCE:
            refusal = _perturbed(system, batch_size)
        elif by_bias > 1 and system.smallest < FULL_RANK * tolerance:
            refusal = (
                f"the bias leaves {by_bias} count vectors, and examples that nearly depend on each other prove none"
            )
    residual = max(best.residual, system.outside)
    error = feature_error(system, best.rows, best.errors, max(residual, eps))
    refusal = refusal or _doubt(best, others, residual, error, tolerance)
    following = min((one.residual for one in others), default=float("inf"))
    says = f"the only ones of {possible} possible counts that explain the head's gradient"
    if possible == 1:
        by = "" if by_bias == 1 else f": of {by_bias} by the bias's gradient the weight's leaves them alone"
        says = f"the only counts possible{by}, and features exist that give the head's gradient"
    return CountCertificate(
        counts=best.counts,
        labels=best.labels,
        features=best.features,
        residual=residual,
        certified=not refusal,
        possible=possible,
        tried=1 + len(others),
        next=following,
        tolerance=tolerance,
        share=best.share,
        condition=system.condition,
        feature_error=error,
        reason=refusal or says,
        settled=all(one.settled for one in others),
    )


def _present(
    system: HeadSystem, least: Int[Tensor, "classes"], batch_size: int, tolerance: float
) -> Int[Tensor, "some"] | None:
    """Classes that may be in the batch at all: p - y of each example lies in G's column space, negative at y alone.

    None where that space says nothing, as examples depend on each other or are as many as hold every class, and where
    classes are so many that asking for each takes seconds. An error of `tolerance` turns p - y in that space by as much
    over the least singular value, of a length of √2 at most where p - y is -1 at y.
    """
    classes, rank = system.target.shape
    if rank < batch_size or rank >= classes - 1 or classes > MOST_CLASSES:
        return None
    if tolerance > SOLVABLE or system.smallest < SEEN * tolerance:
        return None
    angle = math.sqrt(2.0) * tolerance / system.smallest
    space = system.target / system.target.norm(dim=0)
    return negative_alone(space, max(SLACK, angle / (1.0 - angle)), least.nonzero().flatten())


def _is_one(counts: Int[Tensor, "classes"], least: Int[Tensor, "classes"], among: Int[Tensor, "some"] | None) -> bool:
    """Of the possible counts."""
    more = counts - least
    return bool((more >= 0).all()) and (among is None or int(more[among].sum()) == int(more.sum()))


def _unsolvable(system: HeadSystem, batch_size: int, possible: int, most: int, tolerance: float) -> str:
    """Why no counts can be told from others; empty where they can be tried."""
    if tolerance > SOLVABLE:
        return _perturbed(system, batch_size)
    if possible < 1:
        return "no counts are possible: the head's gradient is no batch's of this size"
    if possible > most:
        return f"{possible} count vectors are possible: more than the {most} that are tried"
    return _open(possible) if possible > 1 and system.smallest < SEEN * tolerance else ""


def _open(possible: int) -> str:
    return f"{possible} count vectors are possible, and examples that depend on each other leave features open"


def _perturbed(system: HeadSystem, batch_size: int) -> str:
    return f"{system.outside:.2g} of the gradient is no head's gradient of {batch_size} examples: perturbed"


def _doubt(best: Found, others: list[Found], residual: float, error: float, tolerance: float) -> str:
    """Why `best` is not certified; empty where it is."""
    if residual >= tolerance:
        return "no possible counts explain the gradient"
    if best.least <= VISIBLE * tolerance:
        return "an example leaves no trace in the gradient: its label cannot be told"
    if not others:
        return ""
    close = sum(one.residual < MARGIN * max(tolerance, residual) for one in others)
    if close:
        return f"{1 + close} count vectors or more explain the gradient, or nearly"
    if not all(one.settled for one in others):
        return f"the search for features has not settled for {sum(not one.settled for one in others)} possible counts"
    if error >= MAX_FEATURE_ERROR:
        return f"the equations are too flat: features may be {error:.2g} of their size off"
    if best.share < REACHED:
        return "few starts came to the solution: others may have been missed"
    return ""
