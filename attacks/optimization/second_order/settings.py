"""What a second-order search is told."""

from collections.abc import Sequence
from dataclasses import dataclass

from attacks.optimization.second_order.starts import STARTS
from fedsim.bounds.gaussian_prior import GaussianPrior
from fedsim.errors import one_of, require


@dataclass(frozen=True)
class Settings:
    """What a second-order search tries, and how long.

    Attributes:
        steps: of each start, at most; as many come near before from public images.
        starts: what is tried, in this order: `closed_form` (of the first closed form that applies), `public` (of the
            server's own images where many lead together, then those whose update is the likest; behind noise, with J
            whole and the errors of logits known, those that all together take for likely), `mean`, `prior` (a draw of
            it).
        restarts: how many public images and draws of the prior are tried, and of a batch's many choices of public
            images; where they are taken for likely, sixteen.
        prior: of images: for starts, for what a narrow model does not read of them or an update hardly tells, and
            behind noise for the result. None: that of public images where the server has any, behind noise of those
            of the label's class too, else a smooth one around gray.
        max_unknowns: numbers of all images together, three to a colour pixel; more are refused.
        first_order: steps of Adam before each start that draws, where J is not computed whole.
        draws: from the posterior around each likely image, at most, whose mean is the result behind noise; 0, or where
            J is not computed whole: its likeliest image.
    """

    steps: int = 60
    starts: Sequence[str] = STARTS
    restarts: int = 2
    prior: GaussianPrior | None = None
    draws: int = 200
    first_order: int = 300
    max_unknowns: int = 20_000

    def __post_init__(self) -> None:
        require("steps", self.steps, self.steps >= 1, "1 or more")
        require("restarts", self.restarts, self.restarts >= 1, "1 or more")
        require("starts", self.starts, len(self.starts) > 0, f"one or more of {', '.join(STARTS)}")
        require("max_unknowns", self.max_unknowns, self.max_unknowns >= 1, "1 or more")
        require("draws", self.draws, self.draws >= 0, "0 or more")
        require("first_order", self.first_order, self.first_order >= 0, "0 or more")
        for start in self.starts:
            one_of("starts", start, STARTS)
