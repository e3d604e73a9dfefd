"""Empirical ε: known gradients, of which some enter a private defense, and what its releases show of each.

It tests the mechanism as it is built: noise of a wrong scale, none on a tensor, one number for many, clipping left out
or of each tensor by itself, noise that clients share.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

from clients.bounds.base import Bound, Party
from clients.bounds.canary_releases import FEWEST, MOST, released_canaries, told_of_two
from defenses.base import Defense
from defenses.privacy.accounting import gaussian_epsilon, gaussian_mu
from defenses.settings import whole
from fedsim.bounds.empirical import CONFIDENCE, mu_estimate, mu_lower
from fedsim.bounds.robustness_wording import rounded_down
from fedsim.bounds.statement import Statement
from fedsim.errors import NotApplicable, require


@dataclass(frozen=True)
class EmpiricalEpsilon:
    """What canaries show of one release.

    Attributes:
        claimed: ε that the defense reports at `delta`.
        lower: lower end of the one-sided interval for ε, the largest that canaries of one kind gave; `estimate`: its
            middle.
        shared: whether the difference of two clients' releases gave it: noise that they share.
        canaries: of each kind inside, and as many outside.
        kind: of the canaries that gave it.
    """

    claimed: float
    lower: float
    estimate: float
    delta: float
    confidence: float
    canaries: int
    shared: bool
    kind: str = ""

    @property
    def broken(self) -> bool:
        """The mechanism keeps less than it claims, at this confidence."""
        return self.lower > self.claimed


class Canaries(Bound):
    """Canaries through each private defense of a run by itself, one release of two clients.

    Args:
        canaries: how many of each kind enter, and as many that do not; None: as many as show noise of half its size.
        seed: of the canaries and of the defense's draws.
    """

    kind = "test"

    def __init__(self, canaries: int | None = None, seed: int = 0) -> None:
        if canaries is not None:
            whole("bound.canaries.canaries", canaries, f"from 2 to {MOST:,}, or null", lambda one: 2 <= one <= MOST)
        self.canaries, self.seed = canaries, whole("bound.canaries.seed", seed, "0 or more", lambda one: one >= 0)

    def __call__(self, parties: Sequence[Party]) -> Statement:
        """Raises NotApplicable where no defense claims an ε."""
        given = parties[0].defenses.defenses
        private = {name: one for name, one in given.items() if type(one).gaussian_dp is not Defense.gaussian_dp}
        if not private:
            raise NotApplicable("no defense is differentially private: dp_sgd and local_dp are")
        each_one = 1.0 - (1.0 - CONFIDENCE) / len(private)
        found, refused = {}, dict[str, NotApplicable]()
        for name, defense in private.items():
            try:
                found[name] = empirical_epsilon(defense, canaries=self.canaries, seed=self.seed, confidence=each_one)
            except NotApplicable as reason:
                refused[name] = reason
        if not found:
            raise next(iter(refused.values()))
        told = [
            f"of {name}'s ε a release shows at least {rounded_down(one.lower):.3g} with {CONFIDENCE:.1%} confidence, "
            f"{'more' if one.broken else 'no more'} than the {one.claimed:.3g} that it claims at δ = {one.delta:g}"
            for name, one in found.items()
        ]
        told += [f"{name} was not tested ({reason})" for name, reason in refused.items()]
        broken = [name for name, one in found.items() if one.broken]
        verdict = (
            f"the mechanism is broken: {', '.join(broken)}" if broken else "that finds no fault, and proves no privacy"
        )
        sentence = (
            f"With known gradients as canaries, and assuming that what is seen of them is Gaussian, "
            f"{'; '.join(told)}: {verdict}."
        )
        header = ("defense", "ε claimed", "lower end", "estimate", "canaries of a kind", "most seen of", "in")
        rows = tuple(
            (
                name,
                f"{one.claimed:.3g}",
                f"{rounded_down(one.lower):.3g}",
                f"{one.estimate:.3g}",
                f"{one.canaries:,} + {one.canaries:,}",
                one.kind,
                "the difference of two clients" if one.shared else "one release",
            )
            for name, one in found.items()
        )
        values = {f"{name}_{key}": getattr(one, key) for name, one in found.items() for key in ("claimed", "lower")}
        return Statement(
            "test", sentence, values | {"broken": float(len(broken)), "untested": float(len(refused))}, header, rows
        )


def empirical_epsilon(
    defense: Defense,
    *,
    canaries: int | None = None,
    seed: int = 0,
    epsilon: float | None = None,
    delta: float | None = None,
    confidence: float = CONFIDENCE,
) -> EmpiricalEpsilon:
    """A lower end for ε of one release of this defense, beside the ε that it claims.

    A defense with a `gradient` hook gets canaries as single images' gradients, many in one batch (Andrew et al. 2024,
    algorithm 1); one that changes whole updates gets one canary a client, or its opposite. Canaries are of several
    kinds (`KINDS`): over four tensors with half to a hundred times the clipping norm, and in each tensor alone. Looked
    at are one release, and the difference of two clients' releases, in which noise that both share is gone. The
    largest lower end of all these tests counts; each has its part of what is left to the confidence, so that all
    together blame a right mechanism no more often than it says.

    Args:
        canaries: of each kind that enter, and as many that do not; None: as many as show noise of half its size, at
            most 4,000.
        epsilon, delta: what is claimed of one release; None: what the defense reports in its `measurements`. An ε alone
            is at its δ; a δ alone has the ε of the Gaussian noise that keeps what it reports.

    Raises:
        ConfigError: a claim that is none.
        NotApplicable: the defense claims no ε, or one of 0, or changes neither gradients nor updates.
    """
    by_example = type(defense).gradient is not Defense.gradient
    if not by_example and type(defense).transform_update is Defense.transform_update:
        raise NotApplicable(f"{type(defense).__name__} changes neither gradients nor updates")
    claimed, at = _claim(defense, by_example, seed, epsilon, delta)
    mu = gaussian_mu(claimed, at)
    count = canaries if canaries is not None else min(MOST, max(FEWEST, math.ceil(110 / mu**2 + 30)))
    tests = released_canaries(defense, by_example, count, seed)
    each_one = 1.0 - (1.0 - confidence) / len(tests)
    found = [(mu_lower(*one.shown, each_one), mu_estimate(*one.shown), one) for one in tests]
    lower, estimate, most = max(found, key=lambda one: one[:2])
    ends = [math.inf if value == math.inf else gaussian_epsilon(at, value) for value in (lower, estimate)]
    inside = len(most.shown[0])
    return EmpiricalEpsilon(claimed, ends[0], ends[1], at, confidence, inside, most.difference, most.kind)


def _claim(
    defense: Defense, by_example: bool, seed: int, epsilon: float | None, delta: float | None
) -> tuple[float, float]:
    """ε and δ of one release."""
    if epsilon is not None:
        require("epsilon", epsilon, 0 < epsilon < math.inf, "a positive number")
    if delta is not None:
        require("delta", delta, 0 < delta < 1, "between 0 and 1")
    if epsilon is not None and delta is not None:
        return epsilon, delta
    told = told_of_two(copy.copy(defense), by_example, seed)
    claimed, at = told.get("epsilon", math.inf) if epsilon is None else epsilon, told.get("delta", math.nan)
    if claimed == 0:
        raise NotApplicable(f"{type(defense).__name__} reports ε = 0: give epsilon= and delta= of one release")
    if not 0 < claimed < math.inf or math.isnan(at):
        raise NotApplicable(f"{type(defense).__name__} claims no ε: give epsilon= and delta= of one release")
    return (claimed, at) if delta is None else (gaussian_epsilon(delta, gaussian_mu(claimed, at)), delta)
