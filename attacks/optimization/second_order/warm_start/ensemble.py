"""From many likely images to the client's: images are regressed on what would be shared of them, again and again."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.optimization.second_order.posterior.mean import factors
from attacks.optimization.second_order.steps.sketch import gram

DRAWS, LEAST_DRAWS, MOST_DRAWS = 4, 256, 2048
"""For each unknown, and at least and at most."""
TINY = 1e-12
"""Of the largest curvature, below which float64 tells none."""
PART = 8192
"""Rows that are converted at once."""
PROBES = 16
"""Draws that tell how far the others are drawn from the estimate."""
TIMES = 10
"""How often images are regressed on what is shared of them, at most."""
RIDGES = tuple(10.0 ** (number / 2.0 - 10.0) for number in range(21))
"""Of the largest curvature."""
WIDER, NARROWER = 2.0, 0.1
"""How much farther and nearer than their own covariance has it draws may be, at most.

Fewer than `DRAWS` for each unknown are as far as that: they know it too little.
"""
LITTLE, SLOW = 0.9, 2
"""An estimate that leaves more than this share of the cost explains little more; so many in turn end it."""
FEWEST = 8
"""Examples from which anything is estimated."""
NEARER = 0.5
"""How much nearer examples are drawn where an estimate explains less than the one before."""


@dataclass(frozen=True)
class Estimate:
    """Of unknowns, by those whose rows are known.

    Attributes:
        variance: of what stands for the unknowns, in the mean.
        root: computes R of the covariance RᵀR of its error, each example estimated from the others.
    """

    mean: Float[Tensor, " unknowns"]
    variance: float
    root: Callable[[], Float[Tensor, "deviates unknowns"]]

    def distances(self, unknowns: Float[Tensor, "n unknowns"]) -> Float[Tensor, " n"]:
        """Squared, of each from the estimate, by the covariance of its error (Mahalanobis): how unlike it they are."""
        root = self.root()
        _, inverse = factors(root.T @ root)
        return ((unknowns - self.mean) @ inverse).square().sum(1)


def regress(
    unknowns: Float[Tensor, "n unknowns"],
    rows: Float[Tensor, "n rows"],
    noise: Float[Tensor, " rows"] | float | None = None,
    scale: Float[Tensor, " unknowns"] | None = None,
) -> list[Estimate]:
    """The unknowns at rows of zero, linear in the rows: by the ridge that leaves examples out best, and by larger ones.

    Linear minimum mean square error estimation with sample covariances; rows may outnumber examples by far. Of the rows
    what varies among examples counts, which is the best where errors are alike.

    Args:
        rows: of each example, what it would share less what was shared, in units of its own.
        noise: variance of each row's error in what was shared, or of all alike; None: none.
        scale: mean square of what a unit of each unknown stands for.
    """
    count, middle, centre = len(rows), unknowns.mean(0), rows.mean(0)
    apart, rows = unknowns - middle, rows - centre
    if isinstance(noise, Tensor):
        signal = float(rows.square().mean())
        units = (signal / (signal + noise)).sqrt().to(rows) if signal > 0.0 else torch.ones_like(rows[0])
        rows, centre = rows * units, centre * units
        noise = noise.to(rows) * units.square()
    products = _gram(torch.cat([rows, -centre[None]]))
    square, at_zero = products[:-1, :-1], products[:-1, -1]
    curvature, basis = torch.linalg.eigh(square)
    told = curvature > TINY * curvature[-1].clamp(min=torch.finfo(curvature.dtype).tiny)
    curvature, basis = curvature[told], basis[:, told]
    features, aimed = basis * curvature.sqrt(), (basis.T @ at_zero) / curvature.sqrt()
    alike = 0.0 if noise is None or isinstance(noise, Tensor) else noise
    errors = None
    if isinstance(noise, Tensor):
        projected = basis.T @ _gram(rows * noise.sqrt()) @ basis
        errors = projected / curvature.sqrt() / curvature.sqrt()[:, None]
    scale = torch.ones_like(middle) if scale is None else scale
    largest = float(curvature[-1]) if len(curvature) else 0.0
    wanted = features.T @ apart

    def solved(ridge: float) -> tuple[Tensor, Tensor]:
        damped = curvature + ridge * largest + count * alike
        if errors is None:
            gain, smooth = wanted / damped[:, None], features.T / damped[:, None]
        else:
            gain, smooth = torch.linalg.solve(
                torch.diag(damped) + count * errors, torch.cat([wanted, features.T], dim=1)
            ).split([wanted.shape[1], count], dim=1)
        hat = (features * smooth.T).sum(1) + 1.0 / count  # of the means too
        return gain, (apart - features @ gain) / (1.0 - hat).clamp(min=1e-12)[:, None]

    def root(ridge: float) -> Tensor:
        gain, left_out = solved(ridge)
        found = left_out / math.sqrt(count)
        if errors is None:
            return torch.cat([found, math.sqrt(alike) * gain]) if alike else found
        variances, axes = torch.linalg.eigh(errors)
        return torch.cat([found, variances.clamp(min=0.0).sqrt()[:, None] * (axes.T @ gain)])

    found = []
    for ridge in RIDGES:
        gain, left_out = solved(ridge)
        squares = left_out.square().mean(0) + (gain * (alike * gain if errors is None else errors @ gain)).sum(0)
        variance = float((squares * scale).sum() / scale.sum())
        found.append(Estimate(middle + gain.T @ aimed, variance, partial(root, ridge)))
    return found[min(range(len(found)), key=lambda place: found[place].variance) :]


def _gram(rows: Float[Tensor, "n rows"]) -> Float[Tensor, "n n"]:
    """In float64, a part of the rows after the other."""
    found = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for part in rows.split(PART, dim=1):
        found += gram(part.double())
    return found


@dataclass(frozen=True)
class Ensemble:
    """An iterated regression: what one leaves open is where the next one's examples are drawn.

    Where what is shared bends much between likely images, a line through many of them leads nearer than the tangent at
    one (statistical linearisation: García-Fernández, Svensson, Morelande and Särkkä 2015; ensemble Kalman inversion:
    Iglesias, Law and Stuart 2013).

    Attributes:
        rows: of many unknowns at once, see `regress`.
        cost: ‖r‖² of one.
        enough: of it.
        report: is told the cost of each estimate.
        most: examples at once.
    """

    rows: Callable[[Float[Tensor, "n unknowns"]], Float[Tensor, "n rows"]]
    cost: Callable[[Float[Tensor, " unknowns"]], float]
    enough: float
    report: Callable[[float], None]
    most: int = MOST_DRAWS
    noise: Float[Tensor, " rows"] | float | None = None
    scale: Float[Tensor, " unknowns"] | None = None

    def begin(self, examples: Float[Tensor, "n unknowns"], rng: torch.Generator) -> list[Estimate]:
        """The first regression; none where there are too few examples.

        Args:
            examples: likely images; where they are few, normal deviates besides, as all that are drawn after. No
                estimate is but a sum of the first examples.
        """
        unknowns = examples.shape[1]
        more = max(0, self._count(unknowns) - len(examples))
        few = torch.randn(more, unknowns, generator=rng, dtype=torch.float64)
        return self._regressed(*self._told(torch.cat([examples, few.to(examples)])[: self.most]))

    def _regressed(self, examples: Tensor, rows: Tensor) -> list[Estimate]:
        return regress(examples, rows, self.noise, self.scale) if len(examples) >= FEWEST else []

    def run(
        self, examples: Float[Tensor, "n unknowns"], rng: torch.Generator
    ) -> tuple[Float[Tensor, " unknowns"], bool] | None:
        """The estimate that explains the most, and whether that is enough.

        Args:
            examples: see `begin`.
        """
        best, told, found, near, slow = math.inf, math.inf, None, 1.0, 0
        for _ in range(TIMES):
            drawn = None if found is None else self._drawn(found, told, near, rng)
            several = self.begin(examples, rng) if drawn is None else self._regressed(*drawn)
            if not several:
                break
            costs = self.rows(torch.stack([one.mean for one in several])).square().sum(1).tolist()
            place = next((place for place, cost in enumerate(costs) if cost < told), 0)
            one, cost = several[place], self.cost(several[place].mean)
            self.report(cost)
            if cost < best:
                slow = slow + 1 if cost > LITTLE * best else 0
                best, told, found, near = cost, costs[place], one, min(1.0, near / NEARER)
            else:
                near *= NEARER
            if found is None or best <= self.enough or slow == SLOW:
                break
        return None if found is None else (found.mean, best <= self.enough)

    def _told(self, examples: Float[Tensor, "n unknowns"]) -> tuple[Tensor, Tensor]:
        """With their rows, without examples at which those are no numbers."""
        rows = self.rows(examples)
        finite = rows.isfinite().all(dim=1)
        return examples[finite], rows[finite]

    def _count(self, unknowns: int) -> int:
        """Of examples at once."""
        return min(max(LEAST_DRAWS, DRAWS * unknowns), self.most)

    def _drawn(self, found: Estimate, cost: float, near: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Examples around the estimate, by the covariance that it has.

        Each with its mirror image, but where they are few: one would tell the other, that is to be estimated without.
        """
        unknowns, root = len(found.mean), found.root()
        count = self._count(unknowns)
        mirrored = count // 2 > unknowns
        normal = torch.randn(count // 2 if mirrored else count, len(root), generator=rng, dtype=torch.float64)
        offsets = normal.to(root) @ root
        offsets = torch.cat([offsets, -offsets]) if mirrored else offsets
        if count >= DRAWS * unknowns:
            offsets = self._apart(found.mean, offsets, cost) * offsets
        return self._told(found.mean + near * offsets)

    def _apart(self, mean: Tensor, offsets: Tensor, cost: float) -> float:
        """How far to draw to be as far from the estimate as it is itself from what was shared, by what would be."""
        probed = self.rows(torch.cat([mean[None], mean + offsets[:: max(1, len(offsets) // PROBES)]]))
        spread = float((probed[1:] - probed[0]).square().sum(1).mean())
        noise = 0.0 if self.noise is None else float((self.noise * torch.ones_like(probed[0])).sum())
        signal = max(0.0, cost - noise)
        found = math.sqrt(signal / spread) if spread > 0.0 else 1.0
        return min(max(found, NARROWER), WIDER) if math.isfinite(found) else 1.0
