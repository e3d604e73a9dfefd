"""A search by what public images tell of the class."""

from dataclasses import replace

import pytest
import torch

import fedsim
from attacks.optimization import Budget, GaussNewton, LevenbergMarquardt, Pixels, SquaredL2
from attacks.optimization.problem import make_problem
from attacks.optimization.search.base import SearchTask
from attacks.optimization.second_order import starts
from attacks.optimization.second_order.ends import Ends
from attacks.optimization.second_order.known_class import of_its_class
from attacks.optimization.second_order.warm_start.ensemble import FEWEST
from attacks.session import Session
from defenses import GradientNoise, Withhold
from fedsim.public_images import PublicImages
from tests.attacks.optimization.second_order.test_attack import model as model
from tests.attacks.optimization.second_order.test_attack import psnr
from tests.attacks.optimization.test_engine import Kept, KilledError

CLASSES, EACH = 5, 30


@pytest.fixture(autouse=True)
def few_starts(monkeypatch):
    monkeypatch.setattr(starts, "LIKELY", 3)


@pytest.fixture(scope="module")
def patterns():
    """Images of classes, each its own pattern and little besides."""
    rng = torch.Generator().manual_seed(3)
    means = torch.rand(CLASSES, 1, 3, 4, 4, generator=rng)
    return (means + 0.04 * torch.randn(CLASSES, EACH + 1, 3, 4, 4, generator=rng)).clamp(0, 1)


def observed(model, patterns, label, of, noise=0.3):
    """A client's image of a class, with the public images of all."""
    noise = [GradientNoise(relative_norm=noise)] if noise else []
    seen = fedsim.observe(model, patterns[of, :1], torch.tensor([label]), defense=noise)
    return seen.with_public_images(patterns[:, 1:].flatten(0, 1), torch.arange(CLASSES).repeat_interleave(EACH))


def attacked(seen, labels="auto", draws=20):
    given = {"starts": ["public"], "restarts": 1, "steps": 8, "draws": draws, "frames": 0, "labels": labels}
    return fedsim.attack(GaussNewton(**given), seen)


def of_no_class(seen):
    return replace(seen, public_images=replace(seen.public_images, labels=None))


def problem_of(seen, labels, cpu):
    return make_problem(seen, seen.update.tensors, labels, Pixels(), {}, cpu)


def test_it_holds_the_images_of_the_class_and_their_prior(model, patterns, cpu):
    seen = observed(model, patterns, 2, 2)
    found = of_its_class(problem_of(seen, torch.tensor([2]), cpu)).observation
    assert torch.equal(found.public_images.labels, torch.full((EACH,), 2))
    assert float((found.image_prior.mean - patterns[2, 1:].mean(0)).abs().max()) < 0.05
    assert found.image_prior.log_volume < seen.image_prior.log_volume


def test_without_labels_with_few_images_and_for_a_batch_there_is_none(model, patterns, cpu):
    seen, label = observed(model, patterns, 2, 2), torch.tensor([2])
    held = seen.public_images
    few = replace(held, pixels=held.pixels[::5], labels=held.labels[::5])
    assert int((few.labels == 2).sum()) < FEWEST
    assert of_its_class(problem_of(replace(seen, public_images=few), label, cpu)) is None
    assert of_its_class(problem_of(of_no_class(seen), label, cpu)) is None
    assert of_its_class(problem_of(replace(seen, image_prior=None), label, cpu)) is None
    assert of_its_class(replace(problem_of(seen, torch.tensor([2, 3]), cpu), count=2)) is None


def test_what_noise_leaves_is_nearer_by_the_prior_of_its_class(model, patterns):
    seen = observed(model, patterns, 2, 2, noise=3.0)
    result, blind = attacked(seen), attacked(of_no_class(seen)).images
    assert psnr(result.images, patterns[2, :1]) > psnr(blind, patterns[2, :1]) + 3
    assert result.certificate.values["by_class"] > 0.9


def test_noise_that_hides_all_leaves_the_mean_of_all(model, patterns):
    """Whatever the label, which a rule may have misread."""
    seen = observed(model, patterns, 2, 2, noise=1000.0)
    result = attacked(seen, [1])
    assert psnr(result.images, seen.image_prior.mean[None]) > 25
    assert result.certificate.values["by_class"] == pytest.approx(1 / (1 + CLASSES), abs=0.03)


def test_an_image_unlike_its_class_is_searched_for_among_all(model, patterns):
    """Labelled as class 1, and a picture of class 2."""
    seen = observed(model, patterns, 1, 2)
    result, blind = attacked(seen, [1]), attacked(of_no_class(seen), [1]).images
    found = result.images
    assert result.certificate.values["by_class"] == 0.0
    assert psnr(found, patterns[2, :1]) > psnr(found, patterns[1, 1:].mean(0, keepdim=True)) + 3
    assert psnr(found, patterns[2, :1]) > psnr(blind, patterns[2, :1]) - 1


def test_what_nothing_vouches_for_gives_way_to_the_mean_of_what_was_taken_for_likely(model, patterns, monkeypatch):
    """Of all images where the class has no share, of the class where it has all."""
    monkeypatch.setattr(Ends, "trust", 0.0)
    for label, mean in ((1, None), (2, patterns[2, 1:].mean(0))):
        seen = observed(model, patterns, label, 2)
        mean = seen.image_prior.mean if mean is None else mean
        assert torch.allclose(attacked(seen, [label]).images.double(), mean[None].double(), atol=0.03)


def test_without_draws_it_is_the_likeliest_image_of_the_likelier_prior(model, patterns):
    seen = observed(model, patterns, 2, 2, noise=3.0)
    result = attacked(seen, draws=0)
    assert result.certificate.values["by_class"] == 1.0
    assert "draws" not in result.certificate.values
    assert psnr(result.images, patterns[2, :1]) > psnr(attacked(of_no_class(seen), draws=0).images, patterns[2, :1]) + 3


def test_two_means_are_one_by_their_shares_and_expect_what_sets_them_apart(model, patterns, monkeypatch):
    """Noise that hides all: the shares are those that the priors had before."""
    seen = observed(model, patterns, 2, 2, noise=1000.0)
    result, found = attacked(seen, [1]), []
    for only in ([1.0, 0.0], [0.0, 1.0]):
        monkeypatch.setattr("attacks.optimization.second_order.search.shares", lambda _, only=only: only)
        found.append(attacked(seen, [1]))
    share = result.certificate.values["by_class"]
    mixed = (1 - share) * found[0].images + share * found[1].images
    assert psnr(result.images, mixed) > 45
    errors = [10 ** (-one.certificate.values["predicted_psnr"] / 10) for one in found]
    between = share * (1 - share) * float((found[0].images - found[1].images).square().mean())
    oracle = (1 - share) * errors[0] + share * errors[1] + between
    assert 10 ** (-result.certificate.values["predicted_psnr"] / 10) == pytest.approx(oracle, rel=0.02)


def test_public_images_of_another_size_are_none(model, patterns, cpu):
    seen = observed(model, patterns, 2, 2)
    others = PublicImages.of(torch.rand(20, 3, 4, 2), torch.full((20,), 2))
    other = replace(seen, public_images=others)
    assert of_its_class(problem_of(other, torch.tensor([2]), cpu)) is None
    result = fedsim.attack(GaussNewton(starts=["mean"], steps=2, draws=0, frames=0), other)
    assert result.status == "done", result.reason


@pytest.mark.parametrize("relative", [1e-8, 1e-9])
def test_hardly_any_noise_leaves_a_curvature_that_rounding_makes_indefinite(relative):
    """A layer that reads four numbers of 48, behind noise that is far below what images tell."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(48, 4), torch.nn.Tanh(), torch.nn.Linear(4, 24), torch.nn.Tanh(), torch.nn.Linear(24, 5)
    narrow = torch.nn.Sequential(torch.nn.Flatten(), *layers).double()
    images, labels = torch.rand(80, 3, 4, 4, generator=torch.Generator().manual_seed(1)).double(), torch.arange(80) % 5
    defense = [Withhold(["1.weight"]), GradientNoise(relative_norm=relative)]
    seen = fedsim.observe(narrow, images[:1], labels[:1], defense=defense)
    seen = seen.with_public_images(images[1:], labels[1:])
    result = fedsim.attack(GaussNewton(starts=["mean"], restarts=1, steps=2, draws=0, frames=0), seen)
    assert result.status == "done", result.reason


def test_without_noise_one_search_is_enough(model, patterns, monkeypatch):
    seen = observed(model, patterns, 2, 2, noise=0.0)
    monkeypatch.setattr("attacks.optimization.second_order.search.of_its_class", None)
    assert psnr(attacked(seen).images, patterns[2, :1]) > 60


class InParts(Kept):
    """A session of its own for each part, which dies at a save of that part; all tell how far they are."""

    def __init__(self, dies_at, dies_in="", told=None):
        super().__init__(0 if dies_in else dies_at)
        self.parts, self.of_parts, self.told = {}, {dies_in: dies_at}, [] if told is None else told

    def part(self, name):
        return self.parts.setdefault(name, InParts(self.of_parts.get(name, 0), told=self.told))

    def progress(self, done, total, values):
        self.told.append(done / total)


@pytest.mark.parametrize("dies_in", ["", "class"])
def test_a_killed_search_goes_on_with_the_prior_that_it_was_at(model, patterns, cpu, dies_in):
    seen = observed(model, patterns, 2, 2)
    search = LevenbergMarquardt(steps=4, starts=("public",), restarts=1, draws=4)
    budget = Budget(frames=0, save_every=1)

    def run(session):
        problem, rng = problem_of(seen, torch.tensor([2]), cpu), torch.Generator().manual_seed(0)
        return search.run(SearchTask([problem], SquaredL2(), "gradient", budget, cpu, session), [rng])[0]

    session, whole = InParts(3, dies_in), run(Session())
    with pytest.raises(KilledError):
        run(session)
    session.dies_at = 0
    for part in session.parts.values():
        part.dies_at = 0
    there, at = session.told[0], session.told[-1]
    session.told.clear()
    assert torch.equal(run(session).images, whole.images)
    assert session.told == sorted(session.told)
    assert there < at <= session.told[0] < session.told[-1] <= 1.0
    assert session.told[-1] > 0.8
