"""Counts that a head's gradient itself confirms, with the feature of every example.

The gradient of the bias leaves some counts possible, and no others (`attacks.label.counts.possible`). Each of them
leaves a small system of equations for the features (`attacks.label.head.system`), which the right ones solve up to the
rounding of the gradient. That a wrong one does not is not taken for granted: all of them are tried.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attacks.label.counts.possible import least_counts, nearest_possible, number_possible, possible_counts
from attacks.label.head.system import HeadSystem, feature_error, head_system, solve_rows

TOLERANCE = 32.0
"""Residuals accepted, in roundings of the shared gradient (right counts leave 1 … 30)."""
MAX_TOLERANCE = 3e-5
"""A gradient whose own inconsistency asks for more is not clean."""
VISIBLE = 1000.0
"""An example must contribute this multiple of the tolerance, or one more or less could not be told."""
MARGIN = 100.0
"""Other counts must miss the gradient by this multiple of the tolerance, and of what the certified ones miss it by."""
FULL_RANK = 100.0
"""So many tolerances the gradient's B-th singular value must have for features to lie in its row space."""
MAX_FEATURE_ERROR = 0.1
"""Where features are less certain than this the equations are too flat to tell counts apart."""
REACHED = 0.5
"""Share of the starts that must come to the solution: one that few find tells that others may have been missed."""
CHUNK = 16
QUICK, FIRST, LONG = (4, 60), (6, 200), (12, 600)
"""Starts and iterations where nothing can be certified, for each possible counts, and for what is not settled then."""


@dataclass(frozen=True)
class CountCertificate:
    """Counts and what speaks for them; the nearest that was found where `certified` is False.

    Attributes:
        labels: sorted; the order of `features`' rows, which are in no order within a class.
        features: the input of the head for each example, float64.
        residual: ‖(1/B) Rᵀ[H, 1] - G‖ / ‖G‖ at `counts`.
        possible: count vectors that the gradient of the bias leaves.
        tried: those for which the residual was computed.
        next: the least residual of all others; infinite where there are none.
        tolerance: what the residual had to fall below.
        share: of the solver's starts, those that came to the solution.
        condition: largest over smallest singular value of the gradient.
        feature_error: how far off a feature may be, relative to its size, to first order: what is certified are the
            counts; images that the head scores nearly alike leave their features open.
        reason: what the certificate says, or why there is none.
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
    tolerance = max(1e-9, TOLERANCE * eps, TOLERANCE / 4 * system.outside)
    least = least_counts(bias_grad, batch_size, label_smoothing, max(bias_rounding, tolerance * float(gradient.norm())))
    possible = number_possible(least, batch_size) - int(excluded is not None and bool((excluded >= least).all()))
    refusal = ""
    if tolerance > MAX_TOLERANCE:
        refusal = f"{system.outside:.2g} of the gradient is no head's gradient of {batch_size} examples: perturbed"
    elif possible < 1:
        refusal = "no counts are possible: the bias's gradient is no batch's of this size"
    elif possible > max_candidates:
        refusal = f"{possible} count vectors are possible: more than the {max_candidates} that are tried"
    elif possible > 1 and system.smallest < FULL_RANK * tolerance:
        refusal = f"{possible} count vectors are possible, and examples that depend on each other leave features open"
    search = _Search(system, label_smoothing, tolerance, rng)
    others: list[_Found] = []
    if refusal:
        best = search.solved([nearest_possible(start_counts, least, batch_size)], QUICK)[0]
    else:
        found = (n for n in possible_counts(least, batch_size) if excluded is None or not torch.equal(n, excluded))
        best, others = search.run(sorted(found, key=lambda n: float((n - start_counts).square().sum())))
    residual = max(best.residual, system.outside)
    error = feature_error(system, best.rows, best.errors, max(residual, eps))
    refusal = refusal or _doubt(best, others, residual, error, tolerance)
    following = min((one.residual for one in others), default=float("inf"))
    says = f"the only ones of {possible} possible counts that explain the head's gradient"
    if possible == 1:
        says = "the only counts possible, and features exist that give the head's gradient"
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
    )


def _doubt(best: "_Found", others: list["_Found"], residual: float, error: float, tolerance: float) -> str:
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


@dataclass(frozen=True)
class _Found:
    """One count vector with its solution.

    Attributes:
        least: the smallest contribution of an example to the gradient.
        share: of the starts that came to this solution.
    """

    counts: Int[Tensor, "classes"]
    labels: Int[Tensor, "batch"]
    features: Float[Tensor, "batch features"]
    residual: float
    least: float
    settled: bool
    share: float
    rows: Float[Tensor, "batch rank"]
    errors: Float[Tensor, "batch classes"]


@dataclass(frozen=True)
class _Search:
    """The features of every candidate."""

    system: HeadSystem
    label_smoothing: float
    tolerance: float
    rng: torch.Generator

    def run(self, candidates: list[Int[Tensor, "classes"]]) -> tuple[_Found, list[_Found]]:
        """The one that explains the gradient best, and the others; fewer where two are seen to explain it."""
        found: list[_Found] = []
        for start in range(0, len(candidates), CHUNK):
            found += self.solved(candidates[start : start + CHUNK], FIRST, every=len(candidates) > 1)
            if self.undecided(found):
                break
        best = min(found, key=lambda one: one.residual)
        if best.residual >= self.tolerance:
            again = self.solved([best.counts], LONG, every=len(candidates) > 1)[0]
            best = min(best, again, key=lambda one: one.residual)
        others = [one for one in found if one.counts is not best.counts]
        if best.residual < self.tolerance and not self.undecided([best, *others]):
            others = self.closer(best, others)
        return best, others

    def closer(self, best: _Found, others: list[_Found]) -> list[_Found]:
        """Each of the others again from where `best` is, longer where it had not settled."""
        result: list[_Found] = []
        for effort, settled in ((FIRST, True), (LONG, False)):
            group = [one for one in others if one.settled == settled]
            for start in range(0, len(group), CHUNK):
                if self.undecided([best, *result]):
                    return result + group[start:]
                part = group[start : start + CHUNK]
                again = self.solved([one.counts for one in part], (1 if settled else effort[0], effort[1]), best)
                result += [
                    old if old.residual < new.residual and new.settled else new
                    for old, new in zip(part, again, strict=True)
                ]
        return result

    def undecided(self, found: list[_Found]) -> bool:
        return sum(one.residual < MARGIN * self.tolerance for one in found) > 1

    def solved(
        self,
        group: list[Int[Tensor, "classes"]],
        effort: tuple[int, int],
        near: _Found | None = None,
        every: bool = False,
    ) -> list[_Found]:
        """The best solution of each; also from that of other counts, whose labels are exchanged."""
        classes = torch.arange(len(group[0]))
        labels = torch.stack([torch.repeat_interleave(classes, counts) for counts in group])
        first = None if near is None else torch.stack([near.rows[_matched(near.labels, one)] for one in labels])
        enough = 0.1 * self.tolerance
        solution = solve_rows(self.system, labels, self.label_smoothing, *effort, enough, self.rng, first, every)
        result = []
        for index, counts in enumerate(group):
            rows, errors = solution.rows[index], solution.errors[index]
            contribution = errors.norm(dim=1) * rows.norm(dim=1) / self.system.scale
            features = (rows @ self.system.basis)[:, :-1]
            left, share = float(solution.residual[index]), float(solution.share[index])
            settled, least = bool(solution.settled[index]), float(contribution.min())
            result.append(_Found(counts, labels[index], features, left, least, settled, share, rows, errors))
        return result


def _matched(labels: Int[Tensor, "batch"], wanted: Int[Tensor, "batch"]) -> list[int]:
    """For each wanted label an example that has it, while there are any; then one of those left over."""
    free = list(range(len(labels)))
    chosen: list[int | None] = []
    for label in wanted.tolist():
        same = next((one for one in free if int(labels[one]) == label), None)
        chosen.append(same)
        if same is not None:
            free.remove(same)
    return [free.pop() if one is None else one for one in chosen]


def joined(
    weight: Float[Tensor, "classes features"], bias: Float[Tensor, "classes"]
) -> Float[Tensor, "classes columns"]:
    """[W, b] in float64, on the CPU."""
    return torch.cat([weight.detach(), bias.detach()[:, None]], dim=1).double().cpu()
