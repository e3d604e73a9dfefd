"""`then`: another attack goes on from an attack's images."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import fedsim
from attacks.base import Attack, Reconstruction
from attacks.running import build_attack
from fedsim.errors import ConfigError
from fedsim.settings.options import option

DIGITS = (torch.from_numpy(load_digits().images / 16).float()[:, None]).contiguous()
FEW = {"gauss_newton": {"steps": 12, "frames": 0}}


class Nearly(Attack):
    """Gives an image near the client's own."""

    def run(self, observation, rng, device):
        noise = 0.1 * torch.randn(DIGITS[7:8].shape, generator=rng)
        return Reconstruction(images=(DIGITS[7:8] + noise).clamp(0, 1), trace=({"step": 0.0, "noise": 0.1},))


@pytest.fixture(scope="module")
def seen():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Sigmoid(), nn.Linear(24, 10))
    return fedsim.observe(model, DIGITS[7:8], [7])


def error(result):
    return float((result.images - DIGITS[7:8]).square().mean())


def test_what_is_near_is_polished_to_what_explains_the_update(seen):
    alone, polished = Nearly(), Nearly()
    polished.then = build_attack("gauss_newton", option_of(FEW))
    before, after = fedsim.attack(alone, seen), fedsim.attack(polished, seen)
    assert error(before) > 1e-3
    assert error(after) < 1e-9
    assert after.certified
    assert after.attack == "Nearly"
    assert after.trace[0] == {"step": 0.0, "noise": 0.1}
    assert len(after.trace) > 1


def test_a_search_is_polished_by_one_key(seen):
    steps = {"steps": 30, "restarts": 1, "frames": 0}
    before = fedsim.attack("inverting_gradients", seen, **steps)
    after = fedsim.attack("inverting_gradients", seen, then=FEW, **steps)
    assert error(after) < min(1e-6, error(before))
    assert fedsim.attack("inverting_gradients", seen, then=None, **steps).images.equal(before.images)


def test_where_it_does_not_apply_the_result_stays(seen):
    polished = Nearly()
    polished.then = build_attack("gauss_newton", option_of({"gauss_newton": {"max_unknowns": 3}}))
    assert fedsim.attack(polished, seen).images.equal(fedsim.attack(Nearly(), seen).images)


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ("labels", "attack.row_space.then=labels: must be an attack that goes on from another's images"),
        ("gaus_newton", "Did you mean 'gauss_newton'"),
        (["gauss_newton"], "must be a name of conf/attack, or one name with its settings"),
        ({"gauss_newton": {"stesp": 3}}, "stesp"),
    ],
)
def test_what_cannot_go_on_is_refused_before_anything_runs(chosen, words):
    with pytest.raises(ConfigError) as caught:
        fedsim.attack("row_space", None, then=chosen)
    assert words in str(caught.value)


def option_of(named):
    ((name, settings),) = named.items()
    return option("attack", name, settings)
