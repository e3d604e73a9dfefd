import math

import numpy as np
import pytest
import torch

from defenses import Batch, ClientRound, DefenseChain, Outpost
from defenses.update.outpost import largest_entries, weight_risk, without_smallest
from fedsim.effects import PerturbsSteps
from fedsim.errors import ConfigError
from tests.defenses.as_configured import configured

BATCH = Batch(torch.zeros(1, 3, 2, 2), torch.zeros(1, dtype=torch.long))


class Fixed:
    """The same gradient at each call."""

    def __init__(self, gradient):
        self.gradient = gradient

    def __call__(self, batch):
        return dict(self.gradient)

    def per_example(self, batch):
        raise NotImplementedError


@pytest.fixture
def model():
    rng = torch.Generator().manual_seed(0)
    model = torch.nn.Module()
    model.wide = torch.nn.Parameter(5.0 * torch.randn(40, 50, generator=rng))
    model.narrow = torch.nn.Parameter(0.1 * torch.randn(30, 20, generator=rng))
    model.equal = torch.nn.Parameter(torch.ones(60))
    model.single = torch.nn.Parameter(torch.tensor(3.0))
    return model


@pytest.fixture
def gradient(model):
    rng = torch.Generator().manual_seed(1)
    return {name: torch.randn(p.shape, generator=rng) for name, p in model.named_parameters()}


def step(defense, model, gradient, rng):
    chain = DefenseChain({"outpost": defense})
    return chain.gradient(model, BATCH, Fixed(gradient), rng)


@pytest.mark.parametrize(
    "defense", [Outpost(0.0, 0.0, 0.0, 0.8), Outpost(0.0, 0.4, 0.0, 0.0), Outpost(1e30), Outpost(0.0, 0.0, 0.0, 0.0)]
)
def test_identity_limits_are_bit_equal(defense, model, gradient, rng):
    after = step(defense, model, gradient, rng)
    assert list(after) == list(gradient)
    assert all(torch.equal(after[name], tensor) for name, tensor in gradient.items())


def test_changes_the_gradient_and_not_in_place(model, gradient, rng):
    before = {name: tensor.clone() for name, tensor in gradient.items()}
    after = step(Outpost(0.0), model, gradient, rng)
    assert all(torch.equal(tensor, before[name]) for name, tensor in gradient.items())
    assert all(not torch.equal(after[name], before[name]) for name in ("wide", "narrow", "equal"))
    assert torch.equal(after["single"], before["single"]) or float(after["single"]) == 0.0


def test_pruning_against_numpy_percentiles(model, gradient, rng):
    after = step(Outpost(0.0, noised=0.0, prune=0.8), model, gradient, rng)
    for name in ("wide", "narrow", "equal"):
        entries = gradient[name].numpy()
        expected = np.where(np.abs(entries) < np.percentile(np.abs(entries), 80), 0, entries)
        assert np.array_equal(after[name].numpy(), expected)
        assert int((after[name] == 0).sum()) == round(0.8 * entries.size)


def test_noise_falls_on_the_largest_of_all_entries_by_each_layers_risk(model, gradient, rng):
    after = step(Outpost(0.0, noised=0.4, prune=0.0, noise=0.5), model, gradient, rng)
    everything = torch.cat([tensor.flatten() for tensor in gradient.values()])
    least = sorted(everything.square().tolist())[-round(0.4 * len(everything))]
    for name, risk in (("wide", 1.0), ("narrow", float(model.narrow.detach().var())), ("equal", 0.0), ("single", 0.0)):
        change = after[name] - gradient[name]
        largest = gradient[name].square() >= least
        assert not change[~largest].any()
        if risk > 0:
            assert bool((change[largest] != 0).all())
            assert float(change[largest].std()) == pytest.approx(0.5 * risk, rel=0.1)
        else:
            assert not change.any()
    assert float(model.wide.detach().var()) > 1.0


def test_perturbation_fades_with_the_steps_of_a_turn(model, gradient):
    rng, beta, turns, steps = torch.Generator().manual_seed(0), 0.5, 200, 6
    perturbed = torch.zeros(steps)
    defense = Outpost(beta, noised=0.0, prune=0.5)
    for _ in range(turns):
        defense.begin(ClientRound(1, 4))
        for i in range(steps):
            perturbed[i] += not torch.equal(step(defense, model, gradient, rng)["wide"], gradient["wide"])
    expected = torch.tensor([1.0 / (1.0 + beta * i) for i in range(1, steps + 1)])
    torch.testing.assert_close(perturbed / turns, expected, atol=0.12, rtol=0)


def test_measures_the_share_of_perturbed_steps(model, gradient, rng):
    defense = Outpost(0.0)
    defense.begin(ClientRound(1, 4))
    assert defense.measurements() == {"perturbed": 0.0}
    for _ in range(3):
        step(defense, model, gradient, rng)
    assert defense.measurements() == {"perturbed": 1.0}
    defense.begin(ClientRound(2, 4))
    assert defense.measurements() == {"perturbed": 0.0}


def test_nothing_to_do_draws_nothing(model, gradient, rng):
    before = rng.get_state()
    for idle in ({"prune": 0.0, "noise": 0.0}, {"prune": 0.0, "noised": 0.0}):
        after = step(Outpost(0.0, **idle), model, gradient, rng)
        assert all(torch.equal(after[name], gradient[name]) for name in gradient)
    assert torch.equal(rng.get_state(), before)


def test_replay_whatever_the_order_of_the_tensors(model, gradient):
    def draw(seed, listed):
        return step(Outpost(0.0), model, listed, torch.Generator().manual_seed(seed))

    first, again = draw(1, gradient), draw(1, dict(reversed(gradient.items())))
    assert all(torch.equal(first[name], again[name]) for name in gradient)
    assert not torch.equal(first["wide"], draw(2, gradient)["wide"])


def test_risk():
    assert weight_risk(torch.tensor([0.0, 0.2])) == pytest.approx(0.02)
    assert weight_risk(torch.tensor([0.0, 20.0])) == 1.0
    assert weight_risk(torch.tensor([3.0])) == weight_risk(torch.tensor(3.0)) == weight_risk(torch.ones(5)) == 0.0


def test_shares_of_nothing_and_everything():
    tensors = {"a": torch.tensor([1.0, 3.0]), "b": torch.tensor([[2.0]])}
    assert not any(mask.any() for mask in largest_entries(tensors, 0.0).values())
    assert all(mask.all() for mask in largest_entries(tensors, 1.0).values())
    assert largest_entries(tensors, 0.34)["a"].tolist() == [False, True]
    assert not without_smallest(tensors["a"], 1.0).any()
    assert torch.equal(without_smallest(tensors["a"], 0.5), torch.tensor([0.0, 3.0]))


@pytest.mark.parametrize(
    "settings",
    [{"beta": -1.0}, {"beta": "ten"}, {"noised": 40}, {"prune": 1.2}, {"prune": None}, {"noise": math.inf}],
)
def test_refuses_settings(settings):
    with pytest.raises(ConfigError, match=rf"defense\.outpost\.{next(iter(settings))}="):
        configured(Outpost, **settings)


def test_what_it_publishes_bounds_what_a_step_changes(model, gradient):
    defense = Outpost(beta=0.0, noised=0.1, prune=0.5, noise=0.3)
    (effect,) = defense.effects()
    assert effect == PerturbsSteps(fading=0.0, pruned=0.5, noised=0.1, std=0.3)
    shared = step(defense, model, gradient, torch.Generator().manual_seed(0))
    kept = {name: without_smallest(tensor, effect.pruned) for name, tensor in gradient.items()}
    added = torch.cat([(shared[name] - kept[name]).flatten() for name in gradient])
    assert 0 < int((added != 0).sum()) <= effect.noised * len(added)
    assert 0 < float(added[added != 0].std()) < 1.1 * effect.std
    assert Outpost(prune=0.0, noise=0.0).effects() == Outpost(prune=0.0, noised=0.0).effects() == ()
