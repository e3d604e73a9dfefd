"""Starts behind noise: images that many public ones together take for likely."""

import pytest
import torch

import fedsim
from attacks.optimization import Budget, GaussNewton, LevenbergMarquardt, Pixels, SquaredL2
from attacks.optimization.problem import make_problem, shared_update
from attacks.optimization.search.base import SearchTask
from attacks.optimization.second_order import starts
from attacks.optimization.second_order.victim import VictimSearch
from attacks.session import Session
from defenses import GradientNoise, Half, Withhold
from tests.attacks.optimization.second_order.test_attack import psnr
from tests.attacks.optimization.second_order.test_starts import digits as digits
from tests.attacks.optimization.second_order.test_starts import trained_mlp
from tests.attacks.optimization.test_engine import Kept, KilledError

LIKELY = 4


@pytest.fixture(autouse=True)
def few_starts(monkeypatch):
    monkeypatch.setattr(starts, "LIKELY", LIKELY)


@pytest.fixture(scope="module")
def mlp(digits):
    return trained_mlp(digits, 48)


def observed(mlp, digits, count=1, defense=None):
    images, labels = digits
    noise = [defense or GradientNoise(relative_norm=0.1)]
    seen = fedsim.observe(mlp, images[:count], labels[:count], defense=noise)
    return seen.with_public_images(images[1000:1100], labels[1000:1100])


def search_of(mlp, digits, cpu, session=None, defense=None, **settings):
    seen = observed(mlp, digits, defense=defense)
    problem = make_problem(seen, shared_update(seen, "gradient", cpu), digits[1][:1], Pixels(), {}, cpu)
    given = {"steps": 4, "starts": ("public",), "restarts": 1, "draws": 10} | settings
    task = SearchTask([problem], SquaredL2(), "gradient", Budget(frames=0, save_every=1), cpu, session or Session())
    return VictimSearch(LevenbergMarquardt(**given), task, problem, torch.Generator().manual_seed(0))


def kinds_of(search, monkeypatch):
    """Of the starts that were searched from."""
    kinds, descend = [], VictimSearch._descend

    def told(self, kind, *given):
        kinds.append(kind)
        descend(self, kind, *given)

    monkeypatch.setattr(VictimSearch, "_descend", told)
    search.descend()
    return kinds


def test_all_likely_images_are_starts_and_all_pixels_go_on_from_the_best_end(mlp, digits, cpu, monkeypatch):
    """Though the first ends agree: a better one may be another's."""
    search = search_of(mlp, digits, cpu)
    assert kinds_of(search, monkeypatch) == [*["likely"] * LIKELY, "best"]
    assert search.ends.settled
    assert len(search.ends.found) == LIKELY
    assert search.ends.found[-1] is search.ends.best


def test_other_starts_vary_all_pixels_from_the_first_step(mlp, digits, cpu, monkeypatch):
    assert kinds_of(search_of(mlp, digits, cpu, starts=("mean",)), monkeypatch) == ["mean"]


def test_where_hardly_anything_is_hidden_many_images_lead_first(mlp, digits, cpu, monkeypatch):
    search = search_of(mlp, digits, cpu, defense=Half())
    assert [kind for kind, _ in search._starts()[1]] == ["ensemble", *["likely"] * LIKELY, "best"]
    assert kinds_of(search, monkeypatch)[:1] == ["ensemble"]


def test_without_the_head_public_images_are_starts_by_no_label_of_a_rule(mlp, digits, cpu):
    images, labels = digits
    noise = [GradientNoise(relative_norm=0.1), Withhold(["5.*"])]
    seen = fedsim.observe(mlp, images[:1], labels[:1], defense=noise).with_public_images(images[1000:1100])
    problem = make_problem(seen, shared_update(seen, "gradient", cpu), labels[:1], Pixels(), {}, cpu)
    task = SearchTask([problem], SquaredL2(), "gradient", Budget(frames=0, save_every=1), cpu, Session())
    search = VictimSearch(LevenbergMarquardt(starts=("public",)), task, problem, torch.Generator().manual_seed(0))
    assert [kind for kind, _ in search._starts()[1]] == ["public", "public"]


def test_behind_them_ends_that_agree_end_the_search(mlp, digits, cpu, monkeypatch):
    kinds = kinds_of(search_of(mlp, digits, cpu, starts=("mean", "public", "prior")), monkeypatch)
    assert kinds == ["mean", *["likely"] * LIKELY, "best"]


@pytest.mark.parametrize("dies_in", ["likely", "best"])
def test_a_killed_search_goes_on_with_the_same_bits(mlp, digits, cpu, monkeypatch, dies_in):
    whole, session = search_of(mlp, digits, cpu).run(), Kept(10**6)
    search, descend = search_of(mlp, digits, cpu, session), VictimSearch._descend

    def dies(self, kind, *given):
        if kind == dies_in and self.number:
            session.dies_at = session.saves + 2
        descend(self, kind, *given)

    monkeypatch.setattr(VictimSearch, "_descend", dies)
    with pytest.raises(KilledError):
        search.run()
    monkeypatch.setattr(VictimSearch, "_descend", descend)
    session.dies_at = 0
    again = search_of(mlp, digits, cpu, session).run()
    assert torch.equal(again.images, whole.images)
    assert again.values == whole.values


def test_a_batch_behind_noise_comes_nearer_than_a_guess(mlp, digits):
    seen = observed(mlp, digits, 2, GradientNoise(relative_norm=0.01))
    result = fedsim.attack(GaussNewton(starts=["public"], steps=4, draws=10, frames=0), seen)
    originals, guess = digits[0][:2].double(), seen.image_prior.mean.expand(2, -1, -1, -1)
    assert psnr(result.images.double(), originals) > psnr(guess, originals) + 3
