"""The attack where J is not computed whole."""

import pytest
import torch

import fedsim
from attacks.optimization import GaussNewton
from attacks.optimization.second_order import starts
from attacks.optimization.second_order.warm_start import WarmStart, warm_start
from defenses import GradientNoise, Withhold
from fedsim.bounds.gaussian_prior import GaussianPrior
from tests.attacks.optimization.second_order.test_attack import WHITE, _run, psnr
from tests.attacks.optimization.test_engine import Kept, KilledError

LITTLE = 1e-3
"""GiB: too little for J whole."""
SETTINGS = {"starts": ["mean"], "restarts": 1, "prior": WHITE, "frames": 0, "first_order": 20}


@pytest.fixture
def model():
    torch.manual_seed(0)
    layers = torch.nn.Linear(48, 24), torch.nn.Tanh(), torch.nn.Linear(24, 24), torch.nn.Tanh(), torch.nn.Linear(24, 5)
    return torch.nn.Sequential(torch.nn.Flatten(), *layers)


@pytest.fixture
def images():
    return torch.rand(3, 3, 4, 4, generator=torch.Generator().manual_seed(1))


def test_it_ends_where_j_whole_does(model, images):
    seen = fedsim.observe(model.double(), images[:1].double(), torch.tensor([1]))
    found = [fedsim.attack(GaussNewton(**SETTINGS, memory_gib=room), seen) for room in (None, LITTLE)]
    assert torch.allclose(found[0].images, found[1].images, atol=1e-6)
    assert psnr(found[1].images, images[:1]) > 100
    assert found[1].certificate.values["explained"] == 1.0


def test_images_of_32_pixels_come_back_with_a_sketch_of_a_tenth(rng):
    torch.manual_seed(0)
    wide = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 3), torch.nn.Tanh(), torch.nn.Linear(3, 5))
    image = GaussianPrior().draw((1, 3, 32, 32), rng).float()
    seen = fedsim.observe(wide, image, torch.tensor([1]))
    settings = {**SETTINGS, "prior": None, "first_order": 0, "steps": 8}
    found = fedsim.attack(GaussNewton(**settings, memory_gib=LITTLE * 5), seen)
    assert found.status == "done", found.reason
    assert psnr(found.images, image) > 50


def test_behind_noise_it_ends_nearer_than_gray(model, images):
    image = images[:1]
    seen = fedsim.observe(model, image, torch.tensor([0]), defense=[GradientNoise(relative_norm=0.1)])
    found = fedsim.attack(GaussNewton(**SETTINGS, memory_gib=LITTLE, labels="bias_sign"), seen)
    assert "accepted" not in found.certificate.values, "no draws from the posterior"
    assert float((found.images - image).square().mean()) < 0.5 * float((0.5 - image).square().mean())


def test_from_a_closed_form_it_only_improves(images):
    vit = fedsim.models.Architecture(fedsim.models.ModelSpec("vit_nano_patch2_8", num_classes=10), (), 0)
    image = torch.nn.functional.interpolate(images[:1], (8, 8), mode="bilinear")
    seen = fedsim.observe(vit.build(keep=True), image, torch.tensor([1]))
    before = fedsim.attack("patch_gradient", seen)
    after = fedsim.attack(GaussNewton(starts=["closed_form"], steps=3, memory_gib=0.05, frames=0), seen)
    assert psnr(after.images, image) >= psnr(before.images, image) - 0.1


def test_a_killed_attack_goes_on_with_the_same_bits(model, images):
    seen = fedsim.observe(model, images[:2], torch.tensor([1, 4]), defense=[Withhold(["1.*"])])
    settings = {**SETTINGS, "starts": ["mean", "prior"], "steps": 12, "save_every": 1, "memory_gib": LITTLE}
    whole = _run(GaussNewton(**settings), seen)
    for dies_at in (1, 3):
        attack = GaussNewton(**settings)
        attack.session = Kept(dies_at)
        with pytest.raises(KilledError):
            _run(attack, seen)
        resumed = _run(attack, seen)
        assert torch.equal(resumed.images, whole.images)
        assert resumed.trace == whole.trace


def test_what_a_killed_race_had_gone_is_not_gone_again(model, images, monkeypatch):
    """In a later round, on the way from its first and from its second."""
    monkeypatch.setattr(starts, "RACERS", 4)
    monkeypatch.setattr(warm_start, "RACERS", 4)
    monkeypatch.setattr(WarmStart, "many_images", None)
    seen = fedsim.observe(model, images[:1], torch.tensor([1]), defense=[GradientNoise(relative_norm=0.1)], seed=1)
    rng = torch.Generator().manual_seed(2)
    seen = seen.with_public_images(torch.rand(5, 3, 4, 4, generator=rng), torch.arange(5))
    settings = {**SETTINGS, "starts": ["public"], "restarts": 2, "steps": 3, "memory_gib": LITTLE, "save_every": 1}
    settings["labels"] = "bias_sign"
    gone, towards = [], WarmStart._towards
    monkeypatch.setattr(WarmStart, "_towards", lambda *given: (gone.append(given[2]), towards(*given))[1])
    whole = _run(GaussNewton(**settings), seen)
    parts = gone.copy()
    assert parts == [3] * 4 + [6] * 2 + [3] * 2
    for dies_at in (5, 7, 13):
        gone.clear()
        attack = GaussNewton(**settings)
        attack.session = Kept(dies_at)
        with pytest.raises(KilledError):
            _run(attack, seen)
        assert len(gone) == min(dies_at, 8)
        resumed = _run(attack, seen)
        assert gone == parts
        assert torch.equal(resumed.images, whole.images)
        assert resumed.trace == whole.trace
