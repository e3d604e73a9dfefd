"""Where a second-order search starts: a closed form's image, public images, their mean, draws of a prior."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import combinations, permutations
from logging import getLogger

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.analytic.first_block.attack import FirstBlock
from attacks.analytic.patch_gradient import PatchGradient
from attacks.analytic.row_space.attack import RowSpace
from attacks.base import Attack, Reconstruction
from attacks.certificate.assignments import MAX_ORDERS
from attacks.optimization.parametrisation import PixelSpace
from attacks.optimization.problem import Problem
from attacks.optimization.second_order.residual.residual import shape_of
from attacks.optimization.second_order.warm_start import RACERS, WarmStart
from fedsim.bounds.gaussian_prior import ImagePrior
from fedsim.errors import NotApplicable

logger = getLogger(__name__)

CLOSED_FORMS: tuple[type[Attack], ...] = (PatchGradient, RowSpace, FirstBlock)
STARTS = ("closed_form", "public", "mean", "prior")
HALF_PRECISION = 0.02
"""Relative residual of `patch_gradient` that still is rounding: bfloat16 leaves 2e-3, noise of 1e-3 of the norm 1."""
LIKELY = 16
"""Likely images from which a search behind noise starts one after the other."""
SWEEPS = 2
"""Of the choice of public images for a batch of several."""
MEAN_NOISE = 0.05
"""Standard deviation of the noise around the prior's mean, where a search starts there."""


@dataclass(frozen=True)
class Starts:
    """One victim's starts, as flat points of its space.

    Attributes:
        seeds: of the starts that draw.
        warm_start: where a start comes near, and how much a point explains.
        most_public: images that are tried for each image of a batch.
        hidden: errors of what was shared hide hardly any of what images tell.
    """

    problem: Problem
    prior: ImagePrior
    device: torch.device
    seeds: Sequence[int]
    warm_start: WarmStart
    most_public: int
    hidden: bool = False
    _closed: dict[type[Attack], Reconstruction | None] = field(default_factory=dict, init=False, repr=False)

    def of(self, kinds: Sequence[str]) -> Iterator[tuple[str, Callable[[], Float[Tensor, " n"] | None]]]:
        """In their order, each with what computes it; that gives None for a closed form that does not apply.

        The problem's own start is one of a closed form's kind, and the only one; in a space of pixels, where it is a
        point.
        """
        if self.problem.start is not None and isinstance(self.problem.space, PixelSpace):
            given = self._one_each(self.problem.start.double())
            yield "closed_form", lambda: self._in_order(given)
            return
        for kind in kinds:
            if kind == "closed_form":
                yield kind, self._closed_form
                continue
            if kind == "public" and self._public_images is not None and self.warm_start.many_images is not None:
                if self.hidden or not self.warm_start.plan.likely:
                    others = self.problem.count > 1 and self.warm_start.plan.whole and not self.hidden
                    draws = len(self.seeds) if others else 1  # all public images tell the same once more
                    yield from (("ensemble", partial(self._gathered, rank)) for rank in range(draws))
                if self.warm_start.plan.likely:
                    yield from (("likely", partial(self._likely, rank)) for rank in range(LIKELY))
                    continue
            for rank, seed in enumerate(self.seeds[: 1 if kind == "mean" else None]):
                yield kind, partial(self._near, rank) if kind == "public" else partial(self._drawn, kind, seed)

    def solved(self) -> Float[Tensor, " n"] | None:
        """The image of a closed form whose own equations hold: one image's patches up to half precision's rounding."""
        if not isinstance(self.problem.space, PixelSpace):
            return None
        for attack in CLOSED_FORMS:
            result = self._result_of(attack())
            if result is None or result.images is None:
                continue
            left = result.certificate.values.get("residual", math.inf) if attack is PatchGradient else math.inf
            if result.certificate.status == "certified" or (self.problem.count == 1 and left <= HALF_PRECISION):
                return self._in_order(result.images.double())
        return None

    def _drawn(self, kind: str, seed: int) -> Tensor:
        """The mean has a little noise: all patches alike would be a saddle."""
        rng = torch.Generator().manual_seed(seed)
        if not isinstance(self.problem.space, PixelSpace):
            return self.problem.space.initial(rng).double().flatten().to(self.device)
        shape = shape_of(self.problem)
        if kind == "prior":
            return self._as_point(self.prior.draw(shape, rng))
        noise = MEAN_NOISE * torch.randn(shape, generator=rng, dtype=torch.float64)
        return self._as_point(self.prior.centre(shape) + noise)

    def _near(self, rank: int) -> Tensor | None:
        """From public images towards the client's, those first from which a few steps explain the most."""
        raced = self._raced_on if rank and self.warm_start.plan.whole else self._raced
        return self.warm_start.in_order(raced[rank], str(rank)) if rank < len(raced) else None

    def _gathered(self, rank: int) -> Tensor | None:
        """From many public images together, of a batch other choices for each rank."""
        found = self.warm_start.gathered(self._many_points(rank), self.seeds[rank], str(rank))
        return None if found is None else self.warm_start.in_order(found, f"ensemble/{rank}")

    def _likely(self, rank: int) -> Tensor | None:
        """What many public images tell together, or one that may well be the client's by that.

        Behind noise they tell little, and many images explain an update about as well, each at the end of a way of its
        own.
        """
        return self._likely_points[rank] if rank < len(self._likely_points) else None

    @cached_property
    def _likely_points(self) -> list[Float[Tensor, " n"]]:
        return self.warm_start.likely(self._many_points(0), self.seeds[0], LIKELY)

    def _many_points(self, rank: int) -> Float[Tensor, "k n"]:
        """Public images; of a batch's images each from one of its own."""
        images, count, many = self._public_images, self.problem.count, self.warm_start.many_images
        assert images is not None, "they have a kind of start"
        assert many is not None, "they have a kind of start"
        rng = torch.Generator().manual_seed(self.seeds[rank])
        if count == 1:
            chosen = torch.randperm(len(images), generator=rng)[: many.most, None]
        else:
            chosen = torch.randint(len(images), (many.most, count), generator=rng).unique(dim=0)
        return torch.stack([self._as_point(images[one].double()) for one in chosen])

    @cached_property
    def _raced(self) -> list[Float[Tensor, " n"]]:
        """Where a few steps from each of the nearest public images end, the one that explains the most first."""
        points = [point for rank in range(max(RACERS, len(self.seeds))) if (point := self._nearest(rank)) is not None]
        return [*self.warm_start.race(points[:RACERS]), *points[RACERS:]] if points else []

    @cached_property
    def _raced_on(self) -> list[Float[Tensor, " n"]]:
        """The same, where the first led nowhere: the others by more steps."""
        first, others, rest = self._raced[:1], self._raced[1:RACERS], self._raced[RACERS:]
        return [*first, *self.warm_start.race_on(others), *rest]

    def _nearest(self, rank: int) -> Tensor | None:
        """Public images whose update is like the client's: for each image of the batch the one of this rank."""
        ranked = self._public
        if not ranked or any(rank >= len(images) for images in ranked):
            return None
        return self._as_point(torch.stack([images[rank] for images in ranked]))

    @cached_property
    def _public(self) -> list[Float[Tensor, "n c h w"]]:
        """For each image of the batch the public images that it may be like, the one that explains the most first.

        Where there are several images each is chosen beside the ones that were chosen for the others.
        """
        pools, shape = self._pools(), shape_of(self.problem)
        chosen = self.prior.centre(shape) if pools else torch.empty(0)
        for _ in range(SWEEPS if len(pools) > 1 else 1):
            for slot, pool in enumerate(pools):
                tried = chosen.expand(len(pool), *shape).clone()
                tried[:, slot] = pool
                costs = self.warm_start.left(torch.stack([self._as_point(images) for images in tried])).cpu()
                pools[slot] = pool[costs.argsort(stable=True)]
                chosen[slot] = pools[slot][0]
        return pools

    def _pools(self) -> list[Float[Tensor, "n c h w"]]:
        """For each image of the batch public images of its class.

        Of any class where none is known to be of it, and where the errors of logits are known and J is whole, or
        unknowns of one image: the model may take an image for one of another class.
        """
        held, labels, images = self.problem.observation.public_images, self.problem.labels, self._public_images
        if held is None or labels is None or images is None:
            return []
        images = images.double()
        warm_start, known = self.warm_start, self.warm_start.knows_errors
        any_class = known and warm_start.plan.whole
        if len(labels) == 1:
            any_class = known or warm_start.free_errors is not None
        named = None if any_class else held.labels
        of_class = [images[:0] if named is None else images[named == label] for label in labels.cpu()]
        every = -(-len(images) * len(labels) // self.most_public)  # of a batch's images together so many
        return [pool[: self.most_public] if len(pool) else images[::every] for pool in of_class]

    @property
    def _public_images(self) -> Float[Tensor, "n c h w"] | None:
        """None where there are none, or they have other sizes than the client's."""
        held = self.problem.observation.public_images
        if held is None or not isinstance(self.problem.space, PixelSpace):
            return None
        images = held.images()
        return images if images.shape[1:] == shape_of(self.problem)[1:] else None

    def _closed_form(self) -> Tensor | None:
        if not isinstance(self.problem.space, PixelSpace):
            return None
        found = []
        for attack in CLOSED_FORMS:
            images, open_ = self._images_of(attack())
            if images is not None:
                found.append(self._in_order(self._one_each(images)))
                if not open_:
                    break
        return self._best(found) if found else None

    def _images_of(self, attack: Attack) -> tuple[Float[Tensor, "b c h w"] | None, bool]:
        """What the attack finds, and whether that leaves directions open that the next one may settle."""
        result = self._result_of(attack)
        if result is None or result.images is None:
            return None, True
        mixed = len(result.images) < self.problem.count
        return result.images.double(), mixed or result.certificate.values.get("open_directions", 0.0) > 0

    def _result_of(self, attack: Attack) -> Reconstruction | None:
        """None where the attack does not apply, or gives no image that is finite."""
        if type(attack) not in self._closed:
            self._closed[type(attack)] = self._run(attack)
        return self._closed[type(attack)]

    def _run(self, attack: Attack) -> Reconstruction | None:
        observation = self.problem.observation
        try:
            attack.check(observation)
            with torch.enable_grad():  # it may differentiate a defense's own term
                result = attack.run(observation, torch.Generator().manual_seed(0), self.device)
        except NotApplicable as refusal:
            logger.debug("no start from %s: %s", type(attack).__name__, refusal)
            return None
        return result if result.images is not None and bool(result.images.isfinite().all()) else None

    def _in_order(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, " n"]:
        """Each image at the place of its label: the order that explains the most."""
        count = len(images)
        if math.factorial(count) > MAX_ORDERS:
            return self._as_point(images[self._by_exchange(images)])
        return self._best([self._as_point(images[list(order)]) for order in permutations(range(count))])

    def _by_exchange(self, images: Float[Tensor, "b c h w"]) -> list[int]:
        """An order that no exchange of two images betters."""
        order, labels = list(range(len(images))), self.problem.labels
        if self.warm_start.knows_errors:
            labels = None  # images of one class have errors of their own
        pairs = [(i, j) for i, j in combinations(order, 2) if labels is None or int(labels[i]) != int(labels[j])]
        for _ in images if pairs else ():
            tried = [order, *(_exchanged(order, i, j) for i, j in pairs)]
            points = torch.stack([self._as_point(images[one]) for one in tried])
            best = tried[int(self.warm_start.costs(points).argmin())]
            if best == order:
                break
            order = best
        return order

    def _best(self, points: Sequence[Float[Tensor, " n"]]) -> Float[Tensor, " n"]:
        """The point that explains the most."""
        return points[0] if len(points) == 1 else points[int(self.warm_start.costs(torch.stack(list(points))).argmin())]

    def _one_each(self, images: Tensor) -> Tensor:
        """A mixture of a batch stands for each of its images, with a little noise: all alike would be a saddle."""
        shape = shape_of(self.problem)
        if len(images) == shape[0]:
            return images
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(self.seeds[0]), dtype=torch.float64)
        return images[:1].expand(shape) + MEAN_NOISE * noise.to(images)

    def _as_point(self, images: Tensor) -> Tensor:
        return self.problem.observation.normalised(images).flatten().to(self.device)


def _exchanged(order: list[int], i: int, j: int) -> list[int]:
    found = list(order)
    found[i], found[j] = found[j], found[i]
    return found
