"""A right mechanism is not blamed and a broken one is: fedsim's own and made-up ones."""

import math
from dataclasses import replace

import pytest
import torch

from clients.bounds import Canaries, canaries, empirical_epsilon
from defenses import DPSGD, GradientClip, GradientNoise, LocalDP
from defenses.base import Defense
from defenses.privacy.accounting import gaussian_delta, gaussian_mu
from defenses.privacy.dp_sgd import clipped_sum
from fedsim.errors import ConfigError, NotApplicable

SEEDS = range(20, 40)
"""Of 300 others none blames `dp_sgd` (docs/results/bounds.md); 99.9 % confidence lets one in a thousand."""


class NoEpsilon(DPSGD):
    """Says that a release tells nothing."""

    def measurements(self):
        return super().measurements() | {"epsilon": 0.0}


class HalfNoise(DPSGD):
    """Half of the noise that it says."""

    def gradient(self, model, batch, compute, rng):
        claimed, self.noise_multiplier = self.noise_multiplier, self.noise_multiplier / 2
        try:
            return super().gradient(model, batch, compute, rng)
        finally:
            self.noise_multiplier = claimed


class Unclipped(DPSGD):
    """Clipping is left out."""

    def gradient(self, model, batch, compute, rng):
        self._count(self._turn, len(batch.labels))
        return {
            name: tensor.sum(dim=0) + self.noise_multiplier * torch.randn(tensor.shape[1:], generator=rng)
            for name, tensor in compute.per_example(batch).items()
        }


class SharedNoise(DPSGD):
    """All clients draw the same noise."""

    def gradient(self, model, batch, compute, rng):
        return super().gradient(model, batch, compute, torch.Generator().manual_seed(1))


class HalfLocal(LocalDP):
    @property
    def std(self):
        return super().std / (2 if self.halved else 1)

    halved = False

    def transform_update(self, update, rng):
        self.halved = True
        try:
            return super().transform_update(update, rng)
        finally:
            self.halved = False


class SharedLocal(LocalDP):
    def transform_update(self, update, rng):
        return super().transform_update(update, torch.Generator().manual_seed(1))


class PlainSum(Defense):
    """Written out, with a claim of its own: the sum of clipped gradients and noise of 2."""

    def gradient(self, model, batch, compute, rng):
        total, _ = clipped_sum(compute.per_example(batch), 1.0, False)
        return {name: tensor + 2 * torch.randn(tensor.shape, generator=rng) for name, tensor in total.items()}

    def measurements(self):
        return {"epsilon": 1.99313, "delta": 1e-5}  # Φ: δ = 1e-5 at μ = 1/2


class Rewritten(DPSGD):
    """DP-SGD written out, whose clipping and noise may be changed."""

    def clipped(self, each):
        return clipped_sum(each, 1.0, False)[0]

    def noise(self, number, tensor, tensors, rng):
        return torch.randn(tensor.shape, generator=rng)

    def gradient(self, model, batch, compute, rng):
        self._count(self._turn, len(batch.labels))
        total = self.clipped(compute.per_example(batch))
        named = enumerate(total.items())
        return {name: one + self.noise(number, one, len(total), rng) for number, (name, one) in named}


class OneTensor(Rewritten):
    """Noise on the first tensor alone."""

    def noise(self, number, tensor, tensors, rng):
        return super().noise(number, tensor, tensors, rng) * (number == 0)


class AllButOne(Rewritten):
    """Noise on all tensors but the third."""

    def noise(self, number, tensor, tensors, rng):
        return super().noise(number, tensor, tensors, rng) * (number != 2)


class Divided(Rewritten):
    """The noise is divided by the number of tensors."""

    def noise(self, number, tensor, tensors, rng):
        return super().noise(number, tensor, tensors, rng) / tensors


class EachByItself(Rewritten):
    """Each tensor is clipped to C."""

    def clipped(self, each):
        return {name: clipped_sum({name: one}, 1.0, False)[0][name] for name, one in each.items()}


class Tolerant(Rewritten):
    """Nothing is clipped below 10 C."""

    def clipped(self, each):
        norms = torch.stack([one.flatten(1).square().sum(dim=1) for one in each.values()]).sum(dim=0).sqrt()
        factors = torch.where(norms < 10, 1.0, 1.0 / norms)
        return {name: torch.tensordot(factors, one, dims=1) for name, one in each.items()}


class OneNumber(Rewritten):
    """One random number for all coordinates of a tensor."""

    def noise(self, number, tensor, tensors, rng):
        return torch.randn((), generator=rng).expand(tensor.shape)


class OneNumberForAll(Rewritten):
    """One random number for all coordinates of all tensors."""

    def noise(self, number, tensor, tensors, rng):
        self._common = torch.randn((), generator=rng) if number == 0 else self._common
        return self._common.expand(tensor.shape)


class OneARow(Rewritten):
    """One random number for each row of a tensor, and for each number of a vector."""

    def noise(self, number, tensor, tensors, rng):
        rows = torch.randn(len(tensor), generator=rng)
        return rows.view(-1, *[1] * (tensor.dim() - 1)).expand(tensor.shape)


class LocalParts(LocalDP):
    """Local DP written out, whose noise may be changed."""

    def noise(self, number, tensor, rng):
        return torch.randn(tensor.shape, generator=rng)

    def transform_update(self, update, rng):
        self._turn.memory["rounds"] = torch.tensor(1)
        norm = max(1.0, float(sum(one.square().sum() for one in update.tensors.values()) ** 0.5))
        parts = enumerate(update.tensors.items())
        noisy = {name: one / norm + self.std * self.noise(number, one, rng) for number, (name, one) in parts}
        return replace(update, tensors=noisy)


class LocalOneTensor(LocalParts):
    """Noise on the first tensor alone."""

    def noise(self, number, tensor, rng):
        return super().noise(number, tensor, rng) * (number == 0)


class LocalOneNumber(LocalParts):
    """One random number for all coordinates of a tensor."""

    def noise(self, number, tensor, rng):
        return torch.randn((), generator=rng).expand(tensor.shape)


RIGHT = [DPSGD(), DPSGD(2.0, 0.5, per_layer=True), LocalDP(epsilon=6.0, calibration="analytic"), PlainSum()]
RIGHT += [Rewritten(), LocalParts(epsilon=6.0)]
BROKEN = [HalfNoise(), Unclipped(), SharedNoise(), HalfLocal(epsilon=6.0), SharedLocal(epsilon=6.0)]
BROKEN += [OneTensor(), AllButOne(), Divided(), EachByItself(), Tolerant(), OneNumber(), OneNumberForAll(), OneARow()]
BROKEN += [LocalOneTensor(epsilon=6.0), LocalOneNumber(epsilon=6.0)]


def seeds_of(defense):
    """All for fedsim's own of gradients and for half their noise, the nearest to right; six for the others."""
    return SEEDS if type(defense) in (DPSGD, HalfNoise) else SEEDS[:6]


@pytest.mark.parametrize("defense", RIGHT, ids=lambda one: type(one).__name__)
def test_a_right_mechanism_is_not_blamed(defense):
    found = [empirical_epsilon(defense, seed=seed) for seed in seeds_of(defense)]
    assert not any(one.broken for one in found)
    assert all(0 < one.lower < one.claimed for one in found), "and it is no empty test"


@pytest.mark.parametrize("defense", BROKEN, ids=lambda one: type(one).__name__)
def test_a_broken_mechanism_is_caught(defense):
    found = [empirical_epsilon(defense, seed=seed) for seed in seeds_of(defense)]
    assert all(one.broken for one in found)
    assert all(one.shared for one in found) is type(defense).__name__.startswith("Shared")


def test_the_estimate_comes_close_where_there_are_many():
    found = empirical_epsilon(DPSGD(noise_multiplier=1.0), canaries=2000)
    assert found.estimate == pytest.approx(found.claimed, rel=0.15)
    assert found.lower > 0.7 * found.claimed


def test_a_claim_may_be_given():
    noise = GradientNoise(std=1.0, relative_norm=None)
    found = empirical_epsilon(noise, epsilon=3.0, delta=1e-5)
    assert found.broken, "noise alone bounds nothing"
    assert (found.claimed, found.delta) == (3.0, 1e-5)
    with pytest.raises(ConfigError, match="epsilon=0"):
        empirical_epsilon(noise, epsilon=0.0, delta=1e-5)
    with pytest.raises(NotApplicable, match="give epsilon= and delta="):
        empirical_epsilon(noise, epsilon=3.0)


def test_half_of_a_claim_is_held_against_the_other_half_that_the_defense_reports():
    own = empirical_epsilon(DPSGD(), canaries=60)
    found = empirical_epsilon(DPSGD(), epsilon=1.0)
    assert (found.claimed, found.delta, found.broken) == (1.0, own.delta, True)
    larger = empirical_epsilon(DPSGD(), canaries=60, delta=1e-2)
    assert larger.delta == 1e-2
    mu = gaussian_mu(own.claimed, own.delta)
    assert gaussian_delta(larger.claimed, mu) == pytest.approx(1e-2, abs=1e-9)
    assert not larger.broken
    for half in ({"epsilon": 0.0}, {"delta": 1.0}):
        with pytest.raises(ConfigError, match=next(iter(half))):
            empirical_epsilon(DPSGD(), **half)


@pytest.mark.parametrize(
    ("defense", "reason"),
    [
        (GradientClip(1.0), "claims no ε"),
        (DPSGD(noise_multiplier=0.0), "claims no ε"),
        (LocalDP(epsilon=math.inf), "claims no ε"),
        (NoEpsilon(), "reports ε = 0"),
        (Defense(), "changes neither gradients nor updates"),
    ],
)
def test_what_claims_nothing_is_refused(defense, reason):
    with pytest.raises(NotApplicable, match=reason):
        empirical_epsilon(defense)


def test_the_same_seed_gives_the_same_bits_and_leaves_the_defense_alone():
    defense = DPSGD()
    before = dict(vars(defense))
    assert empirical_epsilon(defense, seed=3) == empirical_epsilon(defense, seed=3)
    assert empirical_epsilon(defense, seed=3) != empirical_epsilon(defense, seed=4)
    assert vars(defense) == before


def test_beside_an_audit(parties):
    found = Canaries(canaries=40)(parties("defense=[dp_sgd]", images=1))
    assert found.kind == "test"
    assert found.values["broken"] == 0.0
    assert "no more than the 4.38 that it claims" in found.sentence
    assert "proves no privacy" in found.sentence
    silent = parties("defense=[dp_sgd,local_dp]", "defense.dp_sgd.noise_multiplier=0", images=1)
    both = Canaries(canaries=40)(silent)
    assert set(both.values) == {"local_dp_claimed", "local_dp_lower", "broken", "untested"}
    assert (both.values["untested"], found.values["untested"]) == (1.0, 0.0), "the other claims no ε"
    assert "99.9% confidence" in both.sentence
    assert "dp_sgd was not tested" in both.sentence
    with pytest.raises(NotApplicable, match="dp_sgd and local_dp are"):
        Canaries()(parties("defense=[gradient_noise]", images=1))
    with pytest.raises(ConfigError, match="canaries=1"):
        Canaries(canaries=1)


def test_a_lower_end_is_not_said_larger_than_it_is(parties, monkeypatch):
    shown = canaries.EmpiricalEpsilon(8.0, 1.9999, 3.0, 1e-5, 0.999, 10, False, "first")
    monkeypatch.setattr(canaries, "empirical_epsilon", lambda *_, **__: shown)
    found = Canaries()(parties("defense=[local_dp]", images=1))
    assert "shows at least 1.99 with" in found.sentence
    assert found.rows[0][2] == "1.99"
