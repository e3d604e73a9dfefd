"""From a start to a point that is near the client's image, where one can be had before the search proper."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import vmap

from attacks.optimization.parametrisation import PixelSpace
from attacks.optimization.problem import Problem
from attacks.optimization.search.base import SearchTask
from attacks.optimization.search.memory import GIB
from attacks.optimization.second_order.residual.residual import Residual
from attacks.optimization.second_order.stages import StagePlan, memory_of, numbers_of, whole_model, whole_together
from attacks.optimization.second_order.steps.levenberg_marquardt import Linearised
from attacks.optimization.second_order.steps.products import MatrixFree
from attacks.optimization.second_order.warm_start.ensemble import TIMES, Ensemble
from attacks.optimization.second_order.warm_start.fading import WITH_PRIOR, descend_with_fading, held_by_prior
from attacks.optimization.second_order.warm_start.free_errors import FreeErrors
from attacks.optimization.second_order.warm_start.known_logits import KnownLogits
from attacks.optimization.second_order.warm_start.many_images import ManyImages
from attacks.optimization.second_order.warm_start.trail import Trail
from fedsim.bounds.gaussian_prior import ImagePrior

MUCH_NEARER = 0.1
"""Of ‖r‖² where a start began to come near: an end that leaves less is what the search proper starts from."""
RACERS, RACE = 8, 3
"""Points that are brought nearer before one is chosen, and by how many steps: ‖r‖² then tells which come near."""


@dataclass(frozen=True)
class WarmStart:
    """Brings one victim's starts near the client's image.

    Attributes:
        steps: at most, of those that come near.
        report: is told ‖r‖² of each.
        trail: what of the way is gone already.
        keep: is told of each new end of it.
    """

    problem: Problem
    task: SearchTask
    plan: StagePlan
    steps: int
    prior: ImagePrior
    report: Callable[[float], None]
    trail: Trail = field(default_factory=Trail)
    keep: Callable[[], None] = lambda: None

    @cached_property
    def known_logits(self) -> KnownLogits | None:
        """None where what is searched for are no pixels."""
        if not isinstance(self.problem.space, PixelSpace):
            return None
        return KnownLogits.of(self.problem, self.plan.stages[0].residual, self.task.local, self.task.device)

    @cached_property
    def many_images(self) -> ManyImages | None:
        """Many likely images that lead to the client's: by one gradient, or of one image by whatever it shared.

        The latter where J is whole. None behind noise where the errors of logits are not known: it hides the label too,
        and public images with their own do not ask for it.
        """
        known, coarse, varied = self.known_logits, self._coarse_logits, self.plan.varied
        both = None if known is None or coarse is None else (known, coarse)
        hidden = self._noisy and (known is None or known.errors is None)
        by_own = varied is not None and self.problem.count == 1 and isinstance(self.problem.space, PixelSpace)
        if hidden or not (both or by_own):
            return None
        together = None if varied is None else self._points_together(varied.count)
        return ManyImages.of(self.problem, self.task, self.plan, self.prior, both, together)

    def gathered(self, points: Float[Tensor, "k n"], seed: int, name: str = "0") -> Float[Tensor, " n"] | None:
        """Where many likely points lead, see `Ensemble`; None where nothing is told of any.

        Args:
            name: of the way from these points.
        """
        part = f"ensemble/{name}"
        if part not in self.trail.ends:
            if (many := self.many_images) is None:
                return None
            ensemble, examples = self._ensemble(many, points, seed)
            found = ensemble.run(examples, torch.Generator().manual_seed(seed))
            if found is None:
                return None
            self.trail.add(part, many.varied.point(found[0]), found[1], None)
            self.keep()
        return self.trail.ends[part][0]

    def likely(self, points: Float[Tensor, "k n"], seed: int, most: int) -> list[Float[Tensor, " n"]]:
        """What many likely points tell together, then these, the least unlike that first; each as far as images vary.

        By the first regression of an `Ensemble`, and what it knows of its own error: later ones use what was shared
        again and are too sure. In sorted order where none can be made.

        Args:
            most: that are returned.
        """
        if (many := self.many_images) is None:
            return []
        names = [f"likely/{rank}" for rank in range(most)]
        if names[0] not in self.trail.ends:
            ensemble, examples = self._ensemble(many, points.unique(dim=0), seed)
            estimates = ensemble.begin(examples, torch.Generator().manual_seed(seed))
            if estimates:
                ranked = examples[estimates[0].distances(examples).argsort(stable=True)]
                examples = torch.cat([estimates[0].mean[None], ranked])
            found = [many.varied.point(one) for one in examples[:most]]
            for name, point in zip(names, found, strict=False):
                self.trail.add(name, point, False, None)
            self.keep()
        return [self.trail.ends[name][0] for name in names if name in self.trail.ends]

    def _ensemble(self, many: ManyImages, points: Float[Tensor, "k n"], seed: int) -> tuple[Ensemble, Tensor]:
        """With its examples."""
        examples = torch.stack([many.varied.unknowns(point) for point in points])
        return many.ensemble(self._enough(many.floor), self.report, seed), examples

    def steps_of(self, kinds: Sequence[str]) -> list[int]:
        """Those that come near before each start, at most; a race is before the first from a public image.

        Where J is whole what it goes on by is before the second.
        """
        if not isinstance(self.problem.space, PixelSpace):
            return [0] * len(kinds)
        steps = [self.steps * (kind in {"public", "ensemble"}) for kind in kinds]
        public = [place for place, kind in enumerate(kinds) if kind == "public"]
        more = int(math.log2(RACERS)) - 1  # rounds
        for place, rounds in zip(public, (1, more) if self.plan.whole else (1 + more,), strict=False):
            steps[place] += RACERS * RACE * rounds
        return [own + TIMES * (kind == "ensemble") for own, kind in zip(steps, kinds, strict=True)]

    def _point(self, x: Float[Tensor, " unknowns"]) -> Float[Tensor, " n"]:
        """Of the problem's space, flat."""
        return (self.plan.varied or self.plan).point(x)

    def _unknowns(self, point: Float[Tensor, " n"]) -> Float[Tensor, " unknowns"]:
        return (self.plan.varied or self.plan).unknowns(point)

    @property
    def knows_errors(self) -> bool:
        """Of the logits."""
        return self.known_logits is not None and self.known_logits.errors is not None

    @cached_property
    def free_errors(self) -> FreeErrors | None:
        """Where they are not known, and J is whole."""
        if self.knows_errors or not self.plan.whole or self._as_it_is:
            return None
        given = self._images, self.task.local, self.task.device, memory_of(self.task) / GIB
        return FreeErrors.of(self.problem, self.plan.stages[0].residual, *given)

    def labels(self, point: Float[Tensor, " n"]) -> Int[Tensor, " batch"] | None:
        """The classes by the errors that explain the update at this point; None where none do.

        None behind noise too: errors that fit it explain it at any point.
        """
        if self.free_errors is None or self._noisy:
            return None
        labels, left = self.free_errors.labels(self._unknowns(point))
        return labels if left <= self._enough(self.free_errors.residual.floor) else None

    def left(self, points: Float[Tensor, "k n"]) -> Float[Tensor, " k"]:
        """‖r‖² of each point, with the errors of logits that fit it best where they are not known."""
        if self.free_errors is None:
            return self.costs(points)
        found = self.free_errors.left(torch.stack([self._unknowns(point) for point in points]))
        return found.nan_to_num(nan=math.inf, posinf=math.inf)

    def costs(self, points: Float[Tensor, "k n"]) -> Float[Tensor, " k"]:
        """‖r‖² of each point: how little it explains; infinite where that is no number.

        Where J is whole as many points at once as it has columns at once.
        """
        x = torch.stack([self.plan.unknowns(point) for point in points])
        residual, together = self._own_residual, self._points_together(x.shape[1])
        if together is None:
            found = torch.stack([residual(one).square().sum() for one in x])
        else:
            found = vmap(lambda one: residual(one).square().sum(), chunk_size=together)(x)
        return found.nan_to_num(nan=math.inf, posinf=math.inf)

    def _points_together(self, unknowns: int) -> int | None:
        """Of which all rounds' numbers are computed at once; columns of J are of one round after the other."""
        together, numbers = whole_together(self.problem, unknowns, self.task), numbers_of(self.problem)
        return None if together is None else max(1, together * max(numbers) // sum(numbers))

    def race(self, points: Sequence[Float[Tensor, " n"]]) -> list[Float[Tensor, " n"]]:
        """A few steps from each, the one that then explains the most first; as they are for several rounds.

        Where J is not whole the race goes on at once (`race_on`): the first steps do not tell there which start ends at
        the image.

        One that explains enough ends the race, but behind noise, where a wrong image may: the others stay as they are.
        """
        if self._as_it_is or len(points) == 1:
            return list(points)
        ends, enough = self._round(points, RACE)
        return ends if enough or self.plan.whole else self.race_on(ends)

    def race_on(self, ends: Sequence[Float[Tensor, " n"]]) -> list[Float[Tensor, " n"]]:
        """The better half by twice as many steps, until two are left (successive halving, Jamieson and Talwalkar 2016).

        Args:
            ends: of a race.
        """
        if self._as_it_is or not ends:
            return list(ends)
        racing, out, steps = self._ranked(ends), list[Tensor](), RACE
        while len(racing) > 2:
            half, steps = (len(racing) + 1) // 2, 2 * steps
            racing, out = racing[:half], [*racing[half:], *out]
            racing, enough = self._round(racing, steps)
            if enough:
                break
        return [*racing, *out]

    def _round(self, points: Sequence[Float[Tensor, " n"]], steps: int) -> tuple[list[Float[Tensor, " n"]], bool]:
        """Of a race: its ends by how much they explain, or the one that explains enough and the others as they are."""
        ends: list[Float[Tensor, " n"]] = []
        for place, point in enumerate(points):
            end, enough = self._gone(f"race/{steps}/{place}", point, steps, 1.0, self._by_products)
            if enough and not self._noisy:
                return [end, *ends, *points[place + 1 :]], True
            ends.append(end)
        return self._ranked(ends), False

    def _ranked(self, points: Sequence[Float[Tensor, " n"]]) -> list[Float[Tensor, " n"]]:
        """The one that explains the most first."""
        return [points[int(place)] for place in self.left(torch.stack(list(points))).argsort(stable=True)]

    def in_order(self, point: Float[Tensor, " n"], name: str = "0") -> Float[Tensor, " n"]:
        """A point that explains more, its patches in the order in which they stand.

        Where J is whole the point itself if the end explains little more; and for several rounds.

        Args:
            name: of the way from this point.
        """
        if self._as_it_is:
            return point
        system = None if self._by_products is None else self._by_products.again()
        end, enough = self._gone(f"order/{name}", point, self.steps, WITH_PRIOR, system)
        if enough or not self.plan.whole:
            return end
        here, there = self.left(torch.stack([point, end])).tolist()
        return end if there < MUCH_NEARER * here else point

    @property
    def _as_it_is(self) -> bool:
        return bool(self.problem.later) or not isinstance(self.problem.space, PixelSpace)

    def _gone(
        self, part: str, point: Float[Tensor, " n"], steps: int, with_prior: float, system: MatrixFree | None
    ) -> tuple[Float[Tensor, " n"], bool]:
        """One part of the way, which a search that goes on after a kill does not go again."""
        if part not in self.trail.ends:
            end, enough = self._towards(point, steps, with_prior, system)
            self.trail.add(part, end, enough, self._by_products)
            self.keep()
        return self.trail.ends[part]

    def _towards(
        self, point: Float[Tensor, " n"], steps: int, with_prior: float, system: MatrixFree | None
    ) -> tuple[Float[Tensor, " n"], bool]:
        x, pixels = self._unknowns(point), self._point
        together, free, count = whole_together(self.problem, len(x), self.task), self.free_errors, len(x)
        if together is not None:
            residual, coarse = self._residual, self._coarse
            if free is not None and self._coarse_errors is not None:
                residual, coarse, x = free.free, self._coarse_errors.free, free.begin(x)
            end, reached = self._descend(residual, coarse, x, lambda u: u[:count], together, steps, with_prior, count)
            return pixels(end[:count]), reached
        assert system is not None
        residual = self._residual
        enough = self._enough(residual.floor)

        def linearised(held: Residual, weight: float) -> Callable[[Tensor], Linearised]:
            return system.held(held.pieces(), weight)

        end, reached = descend_with_fading(residual, _same, x, steps, linearised, self.report, enough, with_prior)
        return pixels(end), reached

    @property
    def _own_residual(self) -> Residual:
        """Of the plan's unknowns."""
        return self._of_plan(self.known_logits, self.plan.stages[0].residual)

    @property
    def _residual(self) -> Residual:
        """Of the unknowns of this warm start."""
        return self.plan.of_varied(self._own_residual)

    @property
    def _coarse(self) -> Residual:
        """The same in float32."""
        return self.plan.of_varied(self._of_plan(self._coarse_logits, self.plan.coarse))

    @cached_property
    def _by_products(self) -> MatrixFree | None:
        """One for all in a race: the sketch of one public image serves at others. None where J is whole."""
        make = self.plan.by_products
        return None if make is None else self.trail.lead(make(self._residual, self._coarse))

    @cached_property
    def _coarse_logits(self) -> KnownLogits | None:
        if self.known_logits is None:
            return None
        given = self.task.local, self.task.device, torch.float32, self.known_logits.errors
        return KnownLogits.of(self.problem, self.plan.coarse, *given)

    @cached_property
    def _coarse_errors(self) -> FreeErrors | None:
        given = self._images, self.task.local, self.task.device, memory_of(self.task) / GIB, torch.float32
        return FreeErrors.of(self.problem, self.plan.coarse, *given)

    def _of_plan(self, known_logits: KnownLogits | None, residual: Residual) -> Residual:
        if known_logits is None or known_logits.errors is None:
            return residual
        return known_logits.images(lambda x: self.plan.point(x).view(self._shape))

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self.problem.count, *self.problem.observation.image_shape)

    def _images(self, x: Tensor) -> Float[Tensor, "batch c h w"]:
        """As the model reads them, of the unknowns of this warm start."""
        return self._point(x).view(self._shape)

    def _enough(self, floor: float) -> float:
        """‖r‖² at which an update is explained; noise leaves its own energy and hardly more."""
        return floor if self._noisy else 2.0 * floor

    @property
    def _noisy(self) -> bool:
        """What was shared has errors of a known variance."""
        return self.plan.stages[-1].residual.before is not None

    def _descend(
        self,
        residual: Residual,
        coarse: Residual,
        x: Tensor,
        prior: Callable[[Tensor], Tensor],
        together: int,
        steps: int,
        with_prior: float,
        even: int,
    ) -> tuple[Tensor, bool]:
        """With J whole, `together` of its columns at a time."""

        def linearised(held: Residual, weight: float) -> Callable[[Tensor], Linearised]:
            return whole_model(held, held_by_prior(coarse, prior, weight), together, even)

        enough = self._enough(residual.floor)
        return descend_with_fading(residual, prior, x, steps, linearised, self.report, enough, with_prior)


def _same(x: Tensor) -> Tensor:
    return x
