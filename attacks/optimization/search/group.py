"""GradInversion's group: several seeds, each drawn to what all of them agree upon (Yin et al. 2021, section 3.3)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attacks.optimization.search.registration import group_distance, group_targets
from fedsim.errors import require


@dataclass(frozen=True)
class GroupConsistency:
    """weight·‖x - x̄‖₂, where x̄ is the mean of all seeds' pictures: of all pixels of one, the mean over the batch.

    Attributes:
        weight: factor on it.
        start: fraction of the run after which the seeds know of each other.
        every: steps after which x̄ is computed anew. Candidates are compared under one mean alone, the last.
        register: align each seed to the mean before averaging; False is the paper's "lazy" mean.
    """

    weight: float = 0.01
    start: float = 0.25
    every: int = 100
    register: bool = True

    def __post_init__(self) -> None:
        require("group.weight", self.weight, self.weight >= 0, "a number that is not negative")
        require("group.every", self.every, self.every >= 1, "a number of steps, 1 or more")
        require("group.start", self.start, 0 <= self.start <= 1, "a fraction of the run, 0 to 1")


class GroupState:
    """The means of all victims, and when they were taken."""

    def __init__(self, settings: GroupConsistency, victims: int, restarts: int) -> None:
        require("restarts", restarts, restarts >= 2, "2 or more for a group to agree")
        self.settings = settings
        self.victims, self.restarts = victims, restarts
        self.means: Float[Tensor, "victims seeds batch c h w"] | None = None

    def number(self, step: int, steps: int) -> int:
        """The number of the means that hold at a step, 0 before the first."""
        begun = step - round(self.settings.start * steps)
        return 0 if begun < 0 else 1 + begun // self.settings.every

    def update(
        self,
        step: int,
        steps: int,
        images: Float[Tensor, "candidates batch c h w"],
        labels: Sequence[Int[Tensor, "batch"] | None],
    ) -> None:
        """Take the means anew where it is time.

        Args:
            labels: of each victim's pictures, None where they are not known; pictures of one label change places.
        """
        begun = step - round(self.settings.start * steps)
        if begun < 0 or (begun % self.settings.every and self.means is not None):
            return
        groups = images.view(self.victims, self.restarts, *images.shape[1:])
        self.means = torch.stack([self._mean(group, own) for group, own in zip(groups, labels, strict=True)])

    def penalty(
        self, victim: int, seeds: slice, images: Float[Tensor, "candidates batch c h w"]
    ) -> Float[Tensor, "candidates"] | float:
        """The penalty of some of a victim's seeds."""
        if self.means is None:
            return 0.0
        return self.settings.weight * group_distance(images, self.means[victim, seeds])

    def _mean(
        self, group: Float[Tensor, "seeds batch c h w"], labels: Int[Tensor, "batch"] | None
    ) -> Float[Tensor, "seeds batch c h w"]:
        """The mean, in the order in which each seed has its pictures."""
        if not self.settings.register:
            return group.mean(dim=0).expand_as(group)
        return group_targets(group, labels).to(group)
