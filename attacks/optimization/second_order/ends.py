"""Where the starts of a search ended, how far they vouch for one another, and how far the best is the image."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attacks.optimization.parametrisation import PixelSpace
from attacks.optimization.problem import Problem
from attacks.optimization.second_order.residual.one_round import ROUNDINGS
from attacks.optimization.second_order.residual.residual import LEFT_BY_ONE, LEFT_BY_SEVERAL, Residual, shape_of
from attacks.optimization.second_order.stages import StagePlan
from fedsim.bounds.gaussian_prior import ImagePrior

RIVAL = 10.0
"""Times the least ‖r‖², up to which another start's end speaks against the best one."""
ALIKE = 2.0
"""How much more ‖r‖² an end may leave than the one behind which it goes on: fewer unknowns follow the errors less."""
SPREAD = 6.0
"""Standard deviations by which ‖r‖² of the true image may pass what noise leaves of it."""
LEFT_BY_NEAR, SURE = 1e-3, 1.0 - 1e-6
"""Of ‖r‖² at the mean, what two ends may leave that speak for one image, and how alike they must be."""
HIDDEN = 1e-7
"""Of ‖r‖² at the mean, what errors may hide for one end to speak for itself: a wrong image may leave little more."""
SAME = 4.0
"""By how much ‖r‖² of two starts may differ that ended at the same image, in units of the noise."""
BETWEEN = 0.5, 0.25, 0.75
"""Of the way from one end to another, where a ridge is looked for."""
LESS_LIKELY, MODES = 30.0, 4
"""By how much more ‖r‖² ends may be modes beside the best one behind noise, and how many at most."""


class End(NamedTuple):
    """Where a start ended.

    Attributes:
        cost: ‖r‖² there.
    """

    cost: float
    x: Float[Tensor, " unknowns"]


def best_of(ends: Sequence[End]) -> End:
    """The one that explains the most."""
    return min(ends, key=lambda end: end.cost)


def agreement(
    ends: Sequence[End],
    mean: Float[Tensor, " unknowns"],
    alone: float = 1.0,
    labels: Int[Tensor, " batch"] | None = None,
) -> float:
    """How alike the best end and another one are in what sets them apart from the mean: from 0 to 1.

    Where errors of starts are independent, so much of what sets an end apart from the mean is the image's.

    Args:
        alone: where no other end explains about as much.
        labels: of a batch's images, one after the other in an end: those of one class have no order.
    """
    best = best_of(ends)
    rivals = [end.x for end in ends if end is not best and end.cost <= RIVAL * best.cost]
    alike = (_cosine(best.x - mean, x - mean, labels) for x in rivals)
    return max(0.0, *alike) if rivals else alone


def _cosine(a: Float[Tensor, " unknowns"], b: Float[Tensor, " unknowns"], labels: Tensor | None) -> float:
    """Of the order of b's images, within each class, in which it is greatest."""
    return float(torch.cosine_similarity(a, _in_order_of(a, b, labels), dim=0))


def _in_order_of(a: Float[Tensor, " unknowns"], b: Float[Tensor, " unknowns"], labels: Tensor | None) -> Tensor:
    """b with its images in the order, within each class, in which they are the most like a's."""
    if labels is None or len(labels.unique()) == len(labels):
        return b
    ours, theirs = a.view(len(labels), -1), b.view(len(labels), -1)
    products = (ours @ theirs.T).cpu()
    alike = (labels[:, None] == labels[None, :]).cpu()
    least = products.min() - products.abs().sum() - 1.0
    columns = linear_sum_assignment(torch.where(alike, products, least).numpy(), maximize=True)[1]
    return theirs[columns.tolist()].flatten()


@dataclass
class Ends:
    """Where one victim's starts ended, and what of that is to be believed.

    Attributes:
        prior: of images, whose mean is what a search has without an update.
        found: of all starts so far, in their order.
    """

    problem: Problem
    plan: StagePlan
    prior: ImagePrior
    device: torch.device
    found: list[End] = field(default_factory=list)

    def add(self, x: Float[Tensor, " unknowns"], behind_best: bool = False) -> None:
        """Where a start ended, if ‖r‖² is finite there; in place of the best one where it began at that."""
        end = End(float(self.residual(x).square().sum()), x)
        if math.isfinite(end.cost):
            best = self.best if behind_best else None
            self.found = [*(other for other in self.found if other is not best), end]

    def go_on(self, end: End) -> None:
        """From the best one to an end behind it, where that explains more, or as much with fewer unknowns."""
        best, rounded = self.best, self.residual.floor / ROUNDINGS**2
        if end.cost < best.cost or end.cost <= min(ALIKE * max(best.cost, rounded), self.doubt):
            fall = min(1.0, end.cost / best.cost) if best.cost > 0 else 1.0  # the others might go on as far
            others = [End(fall * other.cost, other.x) for other in self.found if other is not best]
            self.found = [end, *(other for other in others if other.cost > end.cost)]

    @property
    def residual(self) -> Residual:
        """The last stage's, by which ends are compared."""
        return self.plan.stages[-1].residual

    @property
    def best(self) -> End:
        return best_of(self.found)

    @property
    def explained(self) -> bool:
        """The best one explains what was shared up to its own errors."""
        return bool(self.found) and self.best.cost <= 2.0 * self.residual.floor

    @property
    def within_errors(self) -> bool:
        """The best one leaves no more than the errors may at the true image."""
        return bool(self.found) and self.best.cost <= self.doubt

    @property
    def settled(self) -> bool:
        """What was shared is explained, or two starts came to the same; behind noise no ridge is between them then.

        Behind noise what is explained up to its errors settles it alone where they hide hardly any of what images tell.
        """
        if not self.found:
            return False
        if self.residual.before is None:
            near = self.left(self.best.cost) <= LEFT_BY_NEAR
            return self.explained or (near and self._alike(alone=0.0) >= SURE)
        if self.within_errors and self.hidden:
            return True
        least = self.best.cost + SAME + self._held
        return sum(end.cost <= least and not self._apart(end, self.best) for end in self.found) > 1

    @property
    def modes(self) -> list[End]:
        """The best end, and others that explain about as much and that a ridge of ‖r‖² sets apart.

        How likely an end is that explains far less Laplace's method does not tell: it is no mode. The best alone of
        images of one class, whose order differs from end to end.
        """
        found, labels = list[End](), self.problem.labels
        if labels is not None and len(labels.unique()) < len(labels):
            return [self.best]
        least = self.best.cost + LESS_LIKELY + self._held
        for end in sorted((end for end in self.found if end.cost <= least), key=lambda end: end.cost):
            if len(found) < MODES and all(self._apart(end, other) for other in found):
                found.append(end)
        return found

    def _apart(self, one: End, other: End) -> bool:
        """Somewhere between them less is explained than at either."""
        if one is other:
            return False
        ordered = other.x
        if isinstance(self.problem.space, PixelSpace):
            images = _in_order_of(self.plan.point(one.x), self.plan.point(other.x), self.problem.labels)
            ordered = self.plan.unknowns(images)
        between = (torch.lerp(one.x, ordered, share) for share in BETWEEN)
        least = max(one.cost, other.cost) + SAME
        return not all(float(self.residual(x).square().sum()) <= least for x in between)

    @property
    def _held(self) -> int:
        """Unknowns that other ends hold fixed and the best one does not: noise of one in ‖r‖² each."""
        varied = self.plan.varied
        if not self.plan.likely or varied is None:
            return 0
        within = varied.point(varied.unknowns(self.best.x))
        return 0 if torch.allclose(within, self.best.x) else len(self.best.x) - varied.count

    @property
    def hidden(self) -> bool:
        """The errors of what was shared hide hardly any of what images tell."""
        return 0.0 < self.left(self.doubt) <= HIDDEN

    def left(self, cost: float) -> float:
        """What remains of ‖r‖² at the prior's mean, or of ‖W·f*‖² if that is less; 0 where the mean is no point.

        Behind noise of what the noise does not leave at the true image too.
        """
        least = self.least - self._noise
        return max(0.0, cost - self._noise) / least if math.isfinite(least) and least > 0 else 0.0

    @cached_property
    def least(self) -> float:
        """‖r‖² without an image: at the prior's mean, or ‖W·f*‖² if that is less; 0 where the mean is no point."""
        if not isinstance(self.problem.space, PixelSpace):
            return 0.0
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            at_mean = float(self.residual(self.plan.unknowns(self._mean)).square().sum())
        return min(at_mean, float((self.residual.weights * self.residual.target).square().sum()))

    @property
    def trust(self) -> float:
        """How far the best end is the image: 1 where it explains what was shared, 0 where hardly more than the mean.

        Else as far as ends of other starts vouch for it.
        """
        if self.within_errors:
            return 1.0
        if self.left(self.best.cost) > (LEFT_BY_ONE if self.problem.count == 1 else LEFT_BY_SEVERAL):
            return 0.0
        return self._alike(alone=1.0)

    @property
    def doubt(self) -> float:
        """‖r‖² that the errors of what was shared leave at the true image, at most."""
        floor = self.residual.floor
        if self.residual.before is None:
            return 2.0 * floor
        count = len(self.best.x) if self.found else len(self.plan.unknowns(self._mean))
        return floor + count + SPREAD * math.sqrt(2.0 * floor)

    @property
    def _noise(self) -> float:
        """‖r‖² that noise leaves at the true image."""
        return 0.0 if self.residual.before is None else self.residual.floor

    @cached_property
    def _mean(self) -> Tensor:
        """The prior's, as a point."""
        centre = self.prior.centre(shape_of(self.problem))
        return self.problem.observation.normalised(centre).flatten().to(self.device)

    def _alike(self, alone: float) -> float:
        """How alike ends of starts are, see `agreement`."""
        if not isinstance(self.problem.space, PixelSpace):
            return alone
        ends = [End(max(0.0, end.cost - self._noise), self.plan.point(end.x)) for end in self.found]
        return agreement(ends, self._mean.to(self.best.x), alone, self.problem.labels)
