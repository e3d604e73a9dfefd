"""Which numbers of an update a victim's ensemble reads, and how they are sketched."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import fedsim
from attacks.optimization import Budget, Pixels, SquaredL2
from attacks.optimization.problem import make_problem, shared_update
from attacks.optimization.search.base import SearchTask
from attacks.optimization.second_order import stages
from attacks.optimization.second_order.stages import make_plan
from attacks.optimization.second_order.warm_start import WarmStart, many_images
from defenses import GradientNoise, Withhold
from fedsim.bounds.gaussian_prior import GaussianPrior
from fedsim.models import ModelSpec
from tests.attacks.optimization.second_order.test_by_products import model as model


@pytest.fixture
def images(rng):
    """The client's, and others of the same prior."""
    return GaussianPrior().draw((200, 3, 4, 4), rng).float()


def warm_start(model, images, cpu, memory_gib=4.0, **kinds):
    seen = fedsim.observe(model, images[:1], torch.tensor([1]), **kinds)
    problem = make_problem(seen, shared_update(seen, "gradient", cpu), torch.tensor([1]), Pixels(), {}, cpu)
    task = SearchTask([problem], SquaredL2(), "gradient", Budget(memory_gib=memory_gib), cpu)
    prior = GaussianPrior()
    return WarmStart(problem, task, make_plan(problem, task, prior), 30, prior, lambda cost: None)


def ensemble(start):
    return start.many_images.ensemble(0.0, lambda cost: None, seed=0)


def test_many_numbers_are_read_through_few(model, images, cpu, monkeypatch):
    start = warm_start(model, images, cpu)
    z = torch.randn(300, start.many_images.varied.count, generator=torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        whole = ensemble(start).rows(z)
        monkeypatch.setattr(many_images, "MANY", 100)
        monkeypatch.setattr(many_images, "SKETCHED", 501)
        few = ensemble(start).rows(z)
    assert few.shape == (300, 501)
    assert torch.allclose(few.norm(dim=1) / whole.norm(dim=1), torch.ones(300), atol=0.3)
    assert float((few.norm(dim=1) / whole.norm(dim=1)).mean()) == pytest.approx(1.0, abs=0.05)


def test_rows_of_few_numbers_are_as_unsure_as_those_that_share_them(model, images, cpu, monkeypatch):
    """By updates of one image behind many draws of noise."""
    monkeypatch.setattr(many_images, "MANY", 100)
    monkeypatch.setattr(many_images, "SKETCHED", 501)
    spent = []
    for seed in range(12):
        start = warm_start(model, images, cpu, defense=[GradientNoise(relative_norm=0.3)], seed=seed)
        many = start.many_images
        true = many.varied.unknowns(start.problem.observation.normalised(images[:1].double()).flatten())
        one = ensemble(start)
        with torch.no_grad():
            spent.append(float(one.rows(true[None]).square().mean()) / one.noise)
    assert 0.5 < sum(spent) / len(spent) < 1.5


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_a_sketch_of_the_update_leads_to_the_image_as_the_update_does(model, images, cpu, noise, monkeypatch):
    defense = {"defense": [GradientNoise(relative_norm=noise)]} if noise else {}
    start = warm_start(model, images, cpu, **defense)
    assert start.many_images is not None
    points = torch.stack([start.problem.observation.normalised(one[None].double()).flatten() for one in images])
    with torch.no_grad():
        whole = start.gathered(points[1:], 0)
    monkeypatch.setattr(many_images, "MANY", 100)
    monkeypatch.setattr(many_images, "SKETCHED", 301)
    start = warm_start(model, images, cpu, **defense)
    with torch.no_grad():
        again = start.gathered(points[1:], 0)
    assert not torch.equal(whole, again)
    guess = float((points[1:].mean(0) - points[0]).square().mean())
    for found in (whole, again):
        assert float((found - points[0]).square().mean()) < (0.05 if noise else 1e-3) * guess


def test_it_leads_where_j_is_not_whole(model, images, cpu, monkeypatch):
    monkeypatch.setattr(stages, "MOST_WHOLE", 10)
    monkeypatch.setattr(stages, "FEW", 10)
    start = warm_start(model, images, cpu)
    assert not start.plan.whole
    points = torch.stack([start.problem.observation.normalised(one[None].double()).flatten() for one in images])
    with torch.no_grad():
        found = start.gathered(points[1:], 0)
    assert float((found - points[0]).square().mean()) < 0.05 * float((points[1:].mean(0) - points[0]).square().mean())


def test_without_the_heads_gradient_the_clients_own_loss_leads(model, images, cpu):
    """Nearer than the nearest of a hundred images."""
    start = warm_start(model, images, cpu, defense=[Withhold(["5.*"])])
    assert not start.knows_errors
    true, *others = (start.problem.observation.normalised(one[None].double()).flatten() for one in images[:101])
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        found = start.gathered(torch.stack(others), 0)
    assert float((found - true).norm()) < 0.1 * min(float((one - true).norm()) for one in others)


def test_images_that_are_too_large_are_not_gathered(model, images, cpu, monkeypatch):
    monkeypatch.setattr(many_images, "MOST_PIXELS", 47)
    start = warm_start(model, images, cpu, memory_gib=1e-3)
    assert not start.plan.whole
    assert start.many_images is None


@pytest.mark.parametrize("how", [{"share": "delta", "local_steps": 2, "lr": 0.1}, {"max_grad_norm": 0.1}])
def test_of_what_a_narrow_model_reads_local_steps_and_clipped_gradients_lead_there_too(how, rng):
    """Its plan's unknowns are those directions, no pixels."""
    model = ModelSpec("vit_nano_patch2_8", 10, 8, 4, kwargs={"embed_dim": 16, "depth": 1, "num_heads": 2}).build(0)
    images = torch.rand(60, 3, 8, 8, generator=rng)
    seen = fedsim.observe(model, images[:1], torch.tensor([3]), finetune="lora", **how)
    seen = seen.with_public_images(images[1:], torch.arange(59) % 10)
    result = fedsim.attack("gauss_newton", seen, starts=["public"], steps=1, labels=[3], restarts=1)
    assert result.status == "done", result.reason
