"""Where a second-order search starts: at a closed form's image, at the mean of images, at draws of their prior."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from logging import getLogger

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.analytic.patch_gradient import PatchGradient
from attacks.analytic.row_space.attack import RowSpace
from attacks.optimization.parametrisation import PixelSpace
from attacks.optimization.problem import Problem
from attacks.optimization.second_order.residual import shape_of
from fedsim.bounds.gaussian_prior import ImagePrior
from fedsim.errors import NotApplicable

logger = getLogger(__name__)

STARTS = ("closed_form", "mean", "prior")
MEAN_NOISE = 0.05
"""Standard deviation of the noise around the prior's mean, where a search starts there."""


@dataclass(frozen=True)
class Starts:
    """One victim's starts, as flat points of its space.

    Attributes:
        seeds: of the starts that draw.
    """

    problem: Problem
    prior: ImagePrior
    device: torch.device
    seeds: Sequence[int]

    def of(self, kinds: Sequence[str]) -> Iterator[tuple[str, Callable[[], Float[Tensor, " n"] | None]]]:
        """In their order, each with what computes it; that gives None for a closed form that does not apply.

        The problem's own start is one of a closed form's kind, and the only one.
        """
        if self.problem.start is not None:
            given = self._one_each(self.problem.start.double())
            yield "closed_form", lambda: self._as_point(given)
            return
        for kind in kinds:
            if kind == "closed_form":
                yield kind, self._closed_form
                continue
            for seed in self.seeds[: 1 if kind == "mean" else None]:
                yield kind, partial(self._drawn, kind, seed)

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

    def _closed_form(self) -> Tensor | None:
        if not isinstance(self.problem.space, PixelSpace):
            return None
        observation = self.problem.observation
        for attack in (PatchGradient(), RowSpace()):
            try:
                attack.check(observation)
                with torch.enable_grad():  # it may differentiate a defense's own term
                    images = attack.run(observation, torch.Generator().manual_seed(0), self.device).images
            except NotApplicable as refusal:
                logger.debug("no start from %s: %s", type(attack).__name__, refusal)
                continue
            if images is not None and bool(images.isfinite().all()):
                return self._as_point(self._one_each(images.double()))
        return None

    def _one_each(self, images: Tensor) -> Tensor:
        """A mixture of a batch stands for each of its images, with a little noise: all alike would be a saddle."""
        shape = shape_of(self.problem)
        if len(images) == shape[0]:
            return images
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(self.seeds[0]), dtype=torch.float64)
        return images[:1].expand(shape) + MEAN_NOISE * noise.to(images)

    def _as_point(self, images: Tensor) -> Tensor:
        return self.problem.observation.normalised(images).flatten().to(self.device)
