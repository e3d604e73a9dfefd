"""`client.schedule`: warm-up and decay of a client's learning rate, as a function of how far training has come."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from fedsim.settings.schema import number

Share = Annotated[float, number(0.0, 1.0, words="a number from 0 to 1")]


@dataclass(frozen=True, kw_only=True)
class RateSchedule:
    """What multiplies the learning rate of each local step. It keeps no state: a resumed run has the same rates.

    Attributes:
        shape: how it falls after the warm-up.
        over: all rounds of the run, or a client's local steps, anew in each round.
        warmup: share of it in which the rate rises from 0.
        final: share of the rate that is left where it ends.
    """

    shape: Literal["constant", "linear", "cosine"] = "constant"
    over: Literal["rounds", "steps"] = "rounds"
    warmup: Share = 0.0
    final: Share = 0.0

    @property
    def constant(self) -> bool:
        """Whether it changes nothing."""
        return self.shape == "constant" and self.warmup == 0.0

    def factor(self, step: int, steps: int, server_round: int = 1, num_rounds: int = 1) -> float:
        """Of local step `step` (from 0) of `steps`, in a round counted from 1; each round is as long as this one.

        The first step of all has a rate above 0. One after the end has the last rate.

        >>> schedule = RateSchedule(shape="linear", over="steps", warmup=0.5)
        >>> [schedule.factor(step, 4) for step in range(4)]
        [0.5, 1.0, 1.0, 0.5]
        """
        if self.over == "steps":
            server_round = num_rounds = 1
        total = steps * num_rounds
        done = min((server_round - 1) * steps + step, total)
        rise = self.warmup * total
        if done + 1 < rise:
            return (done + 1) / rise
        if self.shape == "constant":
            return 1.0
        gone = min(1.0, max(0.0, done - rise) / max(total - rise, 1e-12))
        left = 1.0 - gone if self.shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * gone))
        return self.final + (1.0 - self.final) * left
