"""Where a search starts: public images above all."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

import fedsim
from attacks.optimization import Budget, GaussNewton, LevenbergMarquardt, Pixels, SquaredL2
from attacks.optimization.problem import make_problem, shared_update
from attacks.optimization.search.base import SearchTask
from attacks.optimization.second_order import starts
from attacks.optimization.second_order.ends import Ends
from attacks.optimization.second_order.stages import make_plan
from attacks.optimization.second_order.starts import Starts
from attacks.optimization.second_order.warm_start import WarmStart
from attacks.session import Session
from defenses import Withhold
from fedsim.bounds.gaussian_prior import GaussianPrior
from fedsim.errors import ConfigError
from fedsim.models import Architecture, ModelSpec
from fedsim.public_images import PublicImages
from tests.attacks.optimization.test_engine import Kept, KilledError


@pytest.fixture(scope="module")
def digits():
    found = load_digits()
    return torch.from_numpy(found.images / 16).float()[:, None].expand(-1, 3, -1, -1), torch.from_numpy(found.target)


@pytest.fixture(scope="module")
def mlp(digits):
    """Trained on the digits from the thousandth on."""
    return trained_mlp(digits, 96)


def trained_mlp(digits, width):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(192, width), torch.nn.Tanh(), torch.nn.Linear(width, width), torch.nn.Tanh()]
    return trained(torch.nn.Sequential(torch.nn.Flatten(), *layers, torch.nn.Linear(width, 10)), digits, 150, 3e-3)


def trained(model, digits, steps, lr):
    images, labels = digits[0][1000:] * 2.0 - 1.0, digits[1][1000:]
    rng = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        chosen = torch.randint(len(images), (64,), generator=rng)
        optimizer.zero_grad()
        F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    return model.eval()


def decibels(found, images):
    return -10.0 * float((found.double() - images.double()).square().mean().log10())


def attacked(seen, **settings):
    return fedsim.attack(GaussNewton(**{"restarts": 1, "frames": 0, **settings}), seen)


@pytest.fixture
def two_race(monkeypatch):
    """Two of the public images come near before one is chosen: here the second wins, among eight too."""
    monkeypatch.setattr(starts, "RACERS", 2)


@pytest.fixture(scope="module")
def last_block(digits):
    """What a trained model's last block and head share of a digit, and public ones."""
    vit = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10, kwargs={"embed_dim": 32}), (), 0).build(keep=True)
    trained(vit, digits, 100, 2e-3)
    images, labels = digits
    withheld = Withhold(["patch_embed.*", "pos_embed", "cls_token", "blocks.0.*"])
    seen = fedsim.observe(vit, images[:1], labels[:1], defense=[withheld])
    return seen.with_public_images(images[1000:1200], labels[1000:1200])


def test_a_trained_vits_last_block_gives_a_digit_from_public_ones(digits, last_block, two_race):
    """Away from the image a trained model's own loss has a gradient a thousand times the client's."""
    image = digits[0][:1]
    assert decibels(attacked(last_block, steps=6, restarts=3, starts=["public"]).images, image) > 50


def test_a_search_that_its_steps_cut_short_goes_on_with_the_prior(digits, last_block, monkeypatch):
    """From the mean four steps lead nowhere."""
    image = digits[0][:1]
    assert decibels(attacked(last_block, steps=4, starts=["mean"]).images, image) > 50
    monkeypatch.setattr("attacks.optimization.second_order.victim.likeliest", lambda residual, z, *_: z * math.nan)
    assert decibels(attacked(last_block, steps=4, starts=["mean"]).images, image) < 20


def test_by_products_too_it_comes_near_from_a_public_digit(digits, last_block, two_race):
    image = digits[0][:1]
    little = {"steps": 4, "memory_gib": 0.01}  # GiB: too little for J whole
    found = attacked(last_block, starts=["public"], **little)
    alone = attacked(replace(last_block, public_images=None), starts=["mean"], first_order=20, **little)
    assert decibels(found.images, image) > 30
    assert decibels(alone.images, image) < 20


class Nearest:
    """A warm start to which a point explains the more the nearer it is to one."""

    free_errors = None
    many_images = None
    plan = SimpleNamespace(whole=True)

    def __init__(self, point, knows_errors):
        self.point, self.knows_errors = point, knows_errors

    def costs(self, points):
        return (points - self.point).square().sum(dim=1)

    left = costs

    def race(self, points):
        return sorted(points, key=lambda point: float(self.costs(point[None])))

    def race_on(self, ends):
        return list(ends)

    def in_order(self, point, rank):
        return point


@pytest.mark.parametrize("knows_errors", [True, False])
def test_they_are_public_images_that_explain_the_most_of_their_class_or_of_any(mlp, digits, cpu, knows_errors):
    """An image may be taken for one of another class: where logits are known, any class will do."""
    images, labels = digits
    seen = fedsim.observe(mlp, images[:2], labels[1061:1062].repeat(2))
    seen = seen.with_public_images(images[1000:1100], labels[1000:1100])
    assert labels[1060] != labels[1061]
    problem = make_problem(seen, shared_update(seen, "gradient", cpu), labels[1061:1062].repeat(2), Pixels(), {}, cpu)
    target = seen.normalised(images[[1060, 1061]].double()).flatten()
    made = Starts(problem, seen.image_prior, cpu, [0, 1], Nearest(target, knows_errors), 1024)
    (_, first), (_, second) = made.of(["public"])
    found = seen.to_unit_range(first().view(2, 3, 8, 8))
    if knows_errors:
        assert torch.allclose(found, images[[1060, 1061]].double(), atol=0.01)
    else:
        assert torch.allclose(found[1], images[1061].double(), atol=0.01)
        assert not torch.allclose(found[0], images[1060].double(), atol=0.1)
    assert not torch.allclose(seen.to_unit_range(second().view(2, 3, 8, 8)), found, atol=0.1)


def test_as_many_public_images_are_starts_as_are_asked_for(mlp, digits, cpu):
    images, labels = digits
    seen = fedsim.observe(mlp, images[:1], labels[:1]).with_public_images(images[1000:1020], labels[1000:1020])
    problem = make_problem(seen, shared_update(seen, "gradient", cpu), labels[:1], Pixels(), {}, cpu)
    made = Starts(problem, seen.image_prior, cpu, range(9), Nearest(torch.zeros(192).double(), True), 1024)
    found = [make() for _, make in made.of(["public"])]
    assert len({tuple(point.tolist()) for point in found}) == 9


def test_each_image_of_a_batch_has_a_start_of_its_class(digits, two_race):
    images, labels = digits
    seen = fedsim.observe(trained_mlp(digits, 48), images[:2], labels[:2])
    seen = seen.with_public_images(images[1000:1050], labels[1000:1050])
    result = attacked(seen, steps=2, starts=["public"])
    assert result.labels.tolist() == [0, 1]
    assert decibels(result.images, images[:2]) > 40


def test_without_public_images_of_its_shape_the_start_does_not_apply(mlp, digits):
    images, labels = digits
    seen = fedsim.observe(mlp, images[:1], labels[:1])
    for held in (None, PublicImages.of(images[:5, :, :4], None)):
        given = replace(seen, public_images=held)
        result = attacked(given, starts=["public"])
        assert result.status == "refused"
        assert "none of its starts applies: public" in result.reason


def test_public_images_of_another_shape_are_refused(mlp, digits):
    seen = fedsim.observe(mlp, digits[0][:1], digits[1][:1])
    with pytest.raises(ConfigError, match=r"public_images=\(3, 4, 8\): must be images of the model's shape"):
        seen.with_public_images(digits[0][:5, :, :4])


def test_six_images_in_another_order_start_at_the_places_of_their_labels(mlp, digits, cpu):
    chosen = torch.stack([(digits[1] == label).nonzero()[0, 0] for label in range(6)])
    images, labels = digits[0][chosen].contiguous(), torch.arange(6)
    seen = fedsim.observe(mlp, images, labels)
    problem = make_problem(seen, shared_update(seen, "gradient", cpu), labels, Pixels(), {}, cpu)
    problem = replace(problem, start=images.flip(0))
    target = seen.normalised(images.double()).flatten()
    ((_, make),) = Starts(problem, GaussianPrior(), cpu, [0], Nearest(target, False), 1024).of(["public"])
    assert torch.equal(make(), target)


def test_two_starts_that_come_to_the_same_image_are_enough(mlp, digits, two_race):
    """The update of an image of which the model is sure is rounded too coarsely to be explained to the last digit."""
    images, labels = digits
    seen = fedsim.observe(mlp, images[1:2], labels[1:2], defense=[Withhold(["1.*"])])
    seen = seen.with_public_images(images[1000:1200], labels[1000:1200])
    search = LevenbergMarquardt(steps=20, restarts=2, starts=("public", "mean"))
    result = fedsim.attack(GaussNewton(search, budget=Budget(frames=0, save_every=0)), seen)
    assert result.certificate.values["explained"] == 0.0
    assert decibels(result.images, images[1:2]) > 60
    assert {row["start"] for row in result.trace if "start" in row} == {0.0, 1.0}


@pytest.mark.usefixtures("few_last_steps")
@pytest.mark.parametrize("stated", [False, True])
def test_an_image_that_is_explained_tells_its_label_but_where_labels_are_stated(digits, cpu, rng, two_race, stated):
    """Of a trained model's update without its classifier, with another label than the digit's to begin with."""
    images, labels = digits[0][:1].contiguous(), digits[1][:1]
    seen = fedsim.observe(trained_mlp(digits, 48), images, labels, defense=[Withhold(["1.*", "5.*"])])
    seen = seen.with_public_images(digits[0][1000:1200], digits[1][1000:1200])
    problem = make_problem(seen, shared_update(seen, "gradient", cpu), labels + 3, Pixels(), {}, cpu)
    search = LevenbergMarquardt(steps=20, starts=("public",), restarts=1)
    task = SearchTask([replace(problem, stated=stated)], SquaredL2(), "gradient", Budget(frames=0, save_every=0), cpu)
    (found,) = search.run(task, [rng])
    assert found.labels.tolist() == (labels + 3 if stated else labels).tolist()
    assert (decibels(seen.to_unit_range(found.images), images) > 20) == (not stated)


@pytest.mark.usefixtures("few_last_steps")
def test_a_killed_search_goes_on_with_the_name_that_it_found(digits, cpu, two_race):
    """It dies at the save that follows the naming."""
    images, labels = digits[0][:1].contiguous(), digits[1][:1]
    seen = fedsim.observe(trained_mlp(digits, 48), images, labels, defense=[Withhold(["1.*", "5.*"])])
    seen = seen.with_public_images(digits[0][1000:1200], digits[1][1000:1200])
    problem = make_problem(seen, shared_update(seen, "gradient", cpu), labels + 3, Pixels(), {}, cpu)
    search, budget = LevenbergMarquardt(steps=20, starts=("public",), restarts=1), Budget(frames=0, save_every=1)

    def run(session):
        task = SearchTask([problem], SquaredL2(), "gradient", budget, cpu, session)
        return search.run(task, [torch.Generator().manual_seed(0)])[0]

    class Named(Kept):
        def save(self, tensors, record):
            self.dies_at = self.saves + 1 if self.dies_at and record["labels"] == labels.tolist() else self.dies_at
            super().save(tensors, record)

    session, whole = Named(10**6), run(Session())
    with pytest.raises(KilledError):
        run(session)
    session.dies_at = 0
    again = run(session)
    assert again.labels.tolist() == whole.labels.tolist() == labels.tolist()
    assert torch.equal(again.images, whole.images)


@pytest.mark.usefixtures("few_last_steps")
def test_a_name_that_the_clients_own_loss_does_not_bear_out_is_none(digits, cpu, rng, two_race, monkeypatch):
    """What earlier starts found is kept."""
    images, labels = digits[0][:1].contiguous(), digits[1][:1]
    seen = fedsim.observe(trained_mlp(digits, 48), images, labels).with_public_images(
        digits[0][1000:1020], digits[1][1000:1020]
    )
    problem = make_problem(seen, shared_update(seen, "gradient", cpu), labels, Pixels(), {}, cpu)
    monkeypatch.setattr(WarmStart, "labels", lambda self, point: labels + 1)
    search = LevenbergMarquardt(steps=3, starts=("mean", "public"), restarts=1)
    task = SearchTask([problem], SquaredL2(), "gradient", Budget(frames=0, save_every=0), cpu)
    (found,) = search.run(task, [rng])
    assert found.labels.tolist() == labels.tolist()
    assert {row["start"] for row in found.trace if "start" in row} == {0.0, 1.0}


@pytest.mark.usefixtures("few_last_steps")
def test_a_name_that_was_refused_is_not_tried_again(digits, cpu, rng, two_race, monkeypatch):
    images, labels = digits[0][:1].contiguous(), digits[1][:1]
    seen = fedsim.observe(trained_mlp(digits, 48), images, labels).with_public_images(
        digits[0][1000:1020], digits[1][1000:1020]
    )
    problem = make_problem(seen, shared_update(seen, "gradient", cpu), labels, Pixels(), {}, cpu)
    monkeypatch.setattr(WarmStart, "labels", lambda self, point: labels + 1)
    plans, module = [], "attacks.optimization.second_order.victim"
    monkeypatch.setattr(f"{module}.make_plan", lambda *given: plans.append(1) or make_plan(*given))
    monkeypatch.setattr(Ends, "settled", False)
    search = LevenbergMarquardt(steps=1, starts=("public",), restarts=3)
    search.run(SearchTask([problem], SquaredL2(), "gradient", Budget(frames=0, save_every=0), cpu), [rng])
    assert len(plans) == 2


def test_by_products_an_image_of_a_batch_starts_at_one_of_its_class(mlp, digits, cpu):
    images, labels = digits
    seen = fedsim.observe(mlp, images[:2], labels[:2]).with_public_images(images[1000:1100], labels[1000:1100])
    problem = make_problem(seen, shared_update(seen, "gradient", cpu), labels[:2], Pixels(), {}, cpu)
    warm_start = Nearest(torch.zeros(384).double(), True)
    made = Starts(problem, seen.image_prior, cpu, [0], warm_start, 1024)
    assert [len(pool) for pool in made._pools()] == [100, 100]
    assert [len(pool) for pool in replace(made, most_public=100)._pools()] == [50, 50]
    warm_start.plan = SimpleNamespace(whole=False)
    assert [len(pool) for pool in made._pools()] == [int((labels[1000:1100] == label).sum()) for label in labels[:2]]
