"""Empirical ε: known gradients, of which some enter a private defense, and what its releases show of each.

It tests the mechanism as it is built: noise of a wrong scale, clipping left out, noise that clients share.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clients.bounds.base import Bound, Party
from defenses.base import Batch, ClientRound, Defense
from defenses.privacy.accounting import gaussian_epsilon, gaussian_mu
from defenses.settings import whole
from fedsim.bounds.empirical import CONFIDENCE, mu_estimate, mu_lower, unit_canaries
from fedsim.bounds.statement import Statement
from fedsim.determinism import seeded_globals, torch_generator
from fedsim.effects import Clips
from fedsim.errors import NotApplicable, require
from fedsim.update import State, Update

NAME = "canary.weight"
FEWEST, MOST = 60, 4000
"""Canaries inside, and as many outside."""


@dataclass(frozen=True)
class EmpiricalEpsilon:
    """What canaries show of one release.

    Attributes:
        claimed: ε that the defense reports at `delta`.
        lower: lower end of the one-sided interval for ε; `estimate`: its middle.
        shared: whether the difference of two clients' releases gave it: noise that they share.
        canaries: inside, and as many outside.
    """

    claimed: float
    lower: float
    estimate: float
    delta: float
    confidence: float
    canaries: int
    shared: bool

    @property
    def broken(self) -> bool:
        """The mechanism keeps less than it claims, at this confidence."""
        return self.lower > self.claimed


class Canaries(Bound):
    """Canaries through each private defense of a run by itself, one release of two clients.

    Args:
        canaries: how many enter, and as many that do not; None: as many as show noise of half its size.
        seed: of the canaries and of the defense's draws.
    """

    kind = "test"

    def __init__(self, canaries: int | None = None, seed: int = 0) -> None:
        if canaries is not None:
            whole("bound.canaries.canaries", canaries, f"from 2 to {MOST:,}, or null", lambda one: 2 <= one <= MOST)
        self.canaries, self.seed = canaries, whole("bound.canaries.seed", seed, "0 or more", lambda one: one >= 0)

    def __call__(self, parties: Sequence[Party]) -> Statement:
        """Raises NotApplicable where no defense claims an ε."""
        found = {}
        for name, defense in parties[0].defenses.defenses.items():
            if type(defense).gaussian_dp is not Defense.gaussian_dp:
                found[name] = empirical_epsilon(defense, canaries=self.canaries, seed=self.seed)
        if not found:
            raise NotApplicable("no defense is differentially private: dp_sgd and local_dp are")
        told = [
            f"of {name}'s ε a release shows at least {one.lower:.3g} with {one.confidence:.1%} confidence, "
            f"{'more' if one.broken else 'no more'} than the {one.claimed:.3g} that it claims at δ = {one.delta:g}"
            for name, one in found.items()
        ]
        broken = [name for name, one in found.items() if one.broken]
        verdict = (
            f"the mechanism is broken: {', '.join(broken)}" if broken else "that finds no fault, and proves no privacy"
        )
        sentence = (
            f"With known gradients as canaries, and assuming that what is seen of them is Gaussian, "
            f"{'; '.join(told)}: {verdict}."
        )
        header = ("defense", "ε claimed", "lower end", "estimate", "canaries", "seen in")
        rows = tuple(
            (
                name,
                f"{one.claimed:.3g}",
                f"{one.lower:.3g}",
                f"{one.estimate:.3g}",
                f"{one.canaries:,} + {one.canaries:,}",
                "the difference of two clients" if one.shared else "one release",
            )
            for name, one in found.items()
        )
        values = {f"{name}_{key}": getattr(one, key) for name, one in found.items() for key in ("claimed", "lower")}
        return Statement("test", sentence, values | {"broken": float(len(broken))}, header, rows)


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

    A defense with a `gradient` hook gets canaries as single images' gradients, all in one batch (Andrew et al. 2024,
    algorithm 1); one that changes whole updates gets one canary a client, or its opposite. Looked at are one release,
    and the difference of two clients' releases, in which noise that both share is gone; each with half of what is
    left to the confidence.

    Args:
        canaries: that enter, and as many that do not; None: as many as show noise of half its size, at most 4,000.
        epsilon, delta: what is claimed of one release; None: what the defense reports in its `measurements`.

    Raises:
        ConfigError: a claim that is none.
        NotApplicable: the defense claims no ε, or changes neither gradients nor updates.
    """
    by_example = type(defense).gradient is not Defense.gradient
    if not by_example and type(defense).transform_update is Defense.transform_update:
        raise NotApplicable(f"{type(defense).__name__} changes neither gradients nor updates")
    claimed, at = _claim(defense, by_example, seed, epsilon, delta)
    mu = gaussian_mu(claimed, at)
    count = canaries if canaries is not None else min(MOST, max(FEWEST, math.ceil(110 / mu**2 + 30)))
    dimension = max(500, math.ceil(50 * count * min(mu, 3.0) ** 2)) if by_example else 500
    rng = torch_generator(seed, "canaries")
    size = 100.0 * max([1.0, *(one.max_norm for one in defense.effects() if isinstance(one, Clips))])
    release = _of_examples if by_example else _of_updates
    one, two = release(defense, count, dimension, size, rng, seed)
    half = 1.0 - (1.0 - confidence) / 2.0
    each = [(mu_lower(*shown, half), mu_estimate(*shown)) for shown in (one, two)]
    lower, estimate = max(each)
    ends = [math.inf if value == math.inf else gaussian_epsilon(at, value) for value in (lower, estimate)]
    return EmpiricalEpsilon(claimed, ends[0], ends[1], at, confidence, count, each[1] > each[0])


Shown = tuple[Tensor, Tensor]
"""What a release shows of each canary inside, and of each outside."""


def _of_examples(
    defense: Defense, count: int, dimension: int, size: float, rng: torch.Generator, seed: int
) -> tuple[Shown, Shown]:
    """Canaries as gradients of the images of two clients' batches; a third of them enters neither."""
    vectors = unit_canaries(3 * count, dimension, rng)
    first, second = (_release_batch(defense, size * vectors[k * count :][:count], seed, k) for k in (0, 1))
    outside = vectors[2 * count :]
    return tuple(  # type: ignore[return-value]
        (vectors[:count] @ seen, outside @ seen) for seen in (first, first - second)
    )


def _release_batch(defense: Defense, vectors: Tensor, seed: int, client: int) -> Tensor:
    """What one client shares of a batch whose images have these gradients."""
    own, model = copy.copy(defense), _Holder(vectors.shape[1])
    own.begin(ClientRound(1, len(vectors), {}, model))
    batch = Batch(torch.arange(len(vectors), dtype=torch.float32).view(-1, 1, 1, 1), torch.arange(len(vectors)))
    rng = torch_generator(seed, "client-defense", 1, client)
    with seeded_globals(seed, "model-noise", 1, client):
        gradient = own.gradient(model, batch, _Canaries(vectors), rng)
        update = Update(gradient, "gradient", len(vectors))
        shared = own.transform_update(update, torch_generator(seed, "defense", 1, client))
    return shared.tensors[NAME].flatten()


def _of_updates(
    defense: Defense, count: int, dimension: int, size: float, rng: torch.Generator, seed: int
) -> tuple[Shown, Shown]:
    """A canary, or its opposite, as the whole update of a client; beside it a client that has nothing to share."""
    vectors = unit_canaries(2 * count, dimension, rng)
    seen = torch.stack([_release_update(defense, _sign(k, count) * size * v, seed, k) for k, v in enumerate(vectors)])
    none = torch.stack([_release_update(defense, 0.0 * v, seed, 2 * count + k) for k, v in enumerate(vectors)])
    shown = [(vectors * one).sum(dim=1) for one in (seen, seen - none)]
    return (shown[0][:count], shown[0][count:]), (shown[1][:count], shown[1][count:])


def _sign(place: int, count: int) -> float:
    return 1.0 if place < count else -1.0


def _release_update(defense: Defense, vector: Tensor, seed: int, client: int) -> Tensor:
    own = copy.copy(defense)
    own.begin(ClientRound(1, 1, {}, None))
    rng = torch_generator(seed, "defense", 1, client)
    return own.transform_update(Update({NAME: vector}, "gradient", 1), rng).tensors[NAME]


def _claim(
    defense: Defense, by_example: bool, seed: int, epsilon: float | None, delta: float | None
) -> tuple[float, float]:
    """ε and δ of one release."""
    if epsilon is not None and delta is not None:
        require("epsilon", epsilon, 0 < epsilon < math.inf, "a positive number")
        require("delta", delta, 0 < delta < 1, "between 0 and 1")
        return epsilon, delta
    own = copy.copy(defense)
    own.begin(ClientRound(1, 2, {}, _Holder(2)))
    vectors, rng = torch.eye(2), torch_generator(seed, "claim")
    if by_example:
        batch = Batch(torch.zeros(2, 1, 1, 1), torch.arange(2))
        own.gradient(_Holder(2), batch, _Canaries(vectors), rng)
    else:
        own.transform_update(Update({NAME: vectors[0]}, "gradient", 1), rng)
    told = own.measurements()
    claimed, at = told.get("epsilon", math.inf), told.get("delta", math.nan)
    if not 0 < claimed < math.inf or math.isnan(at):
        raise NotApplicable(f"{type(defense).__name__} claims no ε: give epsilon= and delta= of one release")
    return claimed, at


class _Holder(nn.Module):
    """A model of one parameter; a canary is its gradient."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.canary = nn.Linear(dimension, 1, bias=False)


@dataclass(frozen=True)
class _Canaries:
    """`defenses.base.BatchGradient` whose examples have these gradients, by their labels."""

    vectors: Tensor

    def __call__(self, batch: Batch) -> State:
        return {NAME: self.vectors[batch.labels].mean(dim=0)}

    def per_example(self, batch: Batch) -> State:
        return {NAME: self.vectors[batch.labels]}
