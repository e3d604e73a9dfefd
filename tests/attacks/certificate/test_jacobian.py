"""The bound by the whole Jacobian, against images that are off by a known distance."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import fedsim
from attacks.base import Reconstruction
from attacks.certificate import jacobian as certificate_jacobian
from attacks.certificate.confirm import confirmed
from attacks.certificate.jacobian import jacobian_bound
from attacks.forward_mode import jacobian
from attacks.result import Certificate
from tests.support.clients import observe_client

TINY = ("data=digits", "model=vit_nano", "+model.kwargs.depth=1")


@pytest.fixture(scope="module")
def plain():
    return observe_client(*TINY)


def test_jacobian_is_that_of_finite_differences():
    def function(x):
        return torch.stack([x[0] * x[1], x[1].sin(), x.square().sum()])

    at = torch.tensor([0.3, -0.7], dtype=torch.float64)
    rows = [(function(at + step) - function(at - step)) / 2e-6 for step in 1e-6 * torch.eye(2, dtype=torch.float64)]
    torch.testing.assert_close(jacobian(function, at), torch.stack(rows).T, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("size", [0.0, 1e-6, 5e-6])
def test_the_bound_holds_for_an_image_that_is_off(plain, size):
    observation, truth = plain
    rng = torch.Generator().manual_seed(1)
    off = truth.images + size * torch.randn(truth.images.shape, generator=rng, dtype=truth.images.dtype)
    update = observation.replay(off, truth.labels)
    again = replace(observation, update=update)
    bound = jacobian_bound(observation, Reconstruction(off, truth.labels), again)
    assert bound is not None
    if size:
        error = -20 * torch.log10((off - truth.images).square().mean().sqrt())
        assert 30 < bound.psnr <= float(error)
    else:
        assert 60 < bound.psnr < 90, "rounding to float32 is all that is left"


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.24, 0.3, 0.45])
def test_an_update_that_bends_leaves_the_other_solution_within_the_bound_or_has_none(share, monkeypatch):
    """σᵢ dᵢ on an orthonormal basis, less a square in its weakest direction, which is spread over all pixels."""
    count, length, weakest = 48, 1e-3, 1e-2
    rng = torch.Generator().manual_seed(0)
    start = torch.cat([torch.ones(count, 1), torch.randn(count, count - 1, generator=rng)], dim=1).double()
    basis = torch.linalg.qr(start).Q.T
    singular = torch.cat([torch.tensor([weakest]), torch.ones(count - 1)]).double()
    images = 0.3 + 0.4 * torch.rand(1, 3, 4, 4, generator=rng, dtype=torch.float64)
    torch.manual_seed(0)
    seen = fedsim.observe(nn.Sequential(nn.Flatten(), nn.Linear(count, 10)).double(), images, [3])
    at = seen.normalised(images).flatten()
    target = torch.cat([(tensor / tensor.norm()).flatten() for tensor in seen.gradient.values()])

    def bending(pixels):
        moved = singular * (basis @ (pixels - at))
        along = basis[0] @ (pixels - at)
        bend = weakest * (length + share * along**2 / length)
        first = torch.eye(count, dtype=torch.float64)[0]
        return target + torch.cat([moved - bend * first, torch.zeros(len(target) - count)])

    monkeypatch.setattr(certificate_jacobian, "_gradient", lambda *_: bending)
    monkeypatch.setattr(certificate_jacobian, "_seen_by_client", lambda *_: None)
    bound = jacobian_bound(seen, Reconstruction(images, torch.tensor([3])), seen)
    if share > 0.25:
        assert bound is None
        return
    off = 2.0 * length / (1.0 + (1.0 - 4.0 * share) ** 0.5)
    torch.testing.assert_close(bending(at + off * basis[0]), target, rtol=0.0, atol=1e-12)
    other = seen.to_unit_range((at + off * basis[0]).view_as(images))
    known = -10 * float(torch.log10((other - images).square().mean()))
    assert bound is not None
    assert known - 0.01 < bound.psnr <= known + 1e-6


def test_defended_several_steps_and_large_images_have_none(plain):
    observation, truth = plain
    result = Reconstruction(truth.images, truth.labels)
    clipped, _ = observe_client(*TINY, "defense=gradient_clip", "defense.gradient_clip.max_norm=0.1")
    assert jacobian_bound(clipped, result, clipped) is None
    delta, _ = observe_client(*TINY, "client.share=delta")
    assert jacobian_bound(delta, result, delta) is None
    assert jacobian_bound(observation, Reconstruction(torch.zeros(1, 3, 32, 32), truth.labels), observation) is None


@pytest.mark.parametrize("recipe", ["head", "norm"])
def test_fewer_numbers_than_pixels_bound_nothing(recipe):
    """A direction that no equation has is in no singular value of a wide Jacobian either."""
    settings = ("finetune=head",) if recipe == "head" else ("finetune=norm", "finetune.head=false")
    observation, truth = observe_client(*TINY, *settings)
    few = replace(observation.update, tensors=dict(list(observation.update.tensors.items())[-1:]))
    seen = replace(observation, update=few)
    assert sum(tensor.numel() for tensor in few.tensors.values()) < truth.images.numel()
    assert jacobian_bound(seen, Reconstruction(truth.images, truth.labels), seen) is None


@pytest.mark.parametrize("circular", [True, False])
def test_a_shifted_image_that_a_model_cannot_tell_is_not_certified(circular):
    torch.manual_seed(0)
    padding = {"padding": 1, "padding_mode": "circular" if circular else "zeros"}
    layers = nn.Conv2d(3, 24, 3, **padding), nn.Sigmoid(), nn.Conv2d(24, 24, 3, **padding), nn.Sigmoid()
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))
    image = torch.rand(1, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    seen = fedsim.observe(model, image, [0], mean=(0.5,) * 3, std=(0.25,) * 3)
    for given in (image, image.roll(2, 3)):
        claim = Reconstruction(given, torch.tensor([0]), certificate=Certificate("certified", "a claim", {}))
        result = confirmed(seen, claim, jacobian_bound)
        if circular:
            assert result.certificate.status == "uncertified"
            assert "the image shifted by" in result.certificate.reason
        else:
            assert (result.certificate.status == "certified") == (given is image)


class Tied(nn.Module):
    """Four patches; those in `places` with one number share a position embedding."""

    def __init__(self, places):
        super().__init__()
        self.embed, self.places = nn.Conv2d(3, 64, 4, stride=4), torch.tensor(places)
        self.positions = nn.Parameter(0.5 * torch.randn(4, 64))
        self.mixed, self.head = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, images):
        tokens = self.embed(images * 2 - 1).flatten(2).transpose(1, 2) + self.positions[self.places]
        return self.head(torch.sigmoid(3 * self.mixed(torch.sigmoid(2 * tokens))).mean(dim=1))


@pytest.mark.parametrize(("places", "status"), [([0, 1, 2, 3], "certified"), ([0, 1, 2, 0], "uncertified")])
def test_patches_whose_places_a_model_cannot_tell_are_not_certified(places, status):
    torch.manual_seed(0)
    image = 0.2 + 0.6 * torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    seen = fedsim.observe(Tied(places), image, [3])
    claim = Reconstruction(image, torch.tensor([3]), certificate=Certificate("certified", "a claim", {}))
    found = confirmed(seen, claim, jacobian_bound).certificate
    assert found.status == status, found.reason
    assert ("with patches 0 and 3 exchanged gives the same update" in found.reason) == (status == "uncertified")


class Coarse(nn.Module):
    """Steps of 1/16 in float32, and none in float64: what is added takes the last bits."""

    def __init__(self, offset, seen=None):
        super().__init__()
        self.offset, self.seen = offset, seen

    def forward(self, images):
        rounded = (images + self.offset) - self.offset
        return rounded if self.seen is None else torch.where(self.seen, rounded, images)


ONE_PIXEL = torch.arange(48).reshape(3, 4, 4) == 27


@pytest.mark.parametrize(("offset", "where"), [(0.0, None), (1e6, None), (1e6, ONE_PIXEL)])
def test_what_the_clients_own_precision_does_not_see_is_not_certified(offset, where):
    """Every image of one step has the same gradient, though the Jacobian in float64 has full rank."""
    torch.manual_seed(0)
    coarse = Coarse(offset, where)
    model = nn.Sequential(coarse, nn.Flatten(), nn.Linear(48, 64), nn.Sigmoid(), nn.Linear(64, 10))
    image = torch.rand(1, 3, 4, 4)
    seen = fedsim.observe(model, image, [3])
    given = coarse(image)
    claim = Reconstruction(given, torch.tensor([3]), certificate=Certificate("certified", "a claim", {}))
    certificate = confirmed(seen, claim, jacobian_bound).certificate
    assert certificate.values["replayed"] < 1e-6, "the claim gives the shared update"
    if offset == 0.0:
        assert certificate.certified, certificate.reason
    else:
        assert "in the client's own precision a step in" in certificate.reason


def test_the_worst_of_several_images_may_be_off_by_all_of_the_length():
    """Trained on one of eight images, whose gradient is then small: the weakest direction is of that image alone."""
    torch.manual_seed(0)
    count = 8
    layers = nn.Flatten(), nn.Linear(12, 40, bias=False), nn.Tanh(), nn.Linear(40, 24)
    model = nn.Sequential(*layers).double()
    images = torch.rand(count, 3, 2, 2, dtype=torch.float64) * 0.6 + 0.2
    labels = torch.full((count,), 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    others = torch.arange(4, 4 + count - 1)
    for _ in range(200):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[:1]), labels[:1])
        (loss + nn.functional.cross_entropy(model(images[1:]), others)).backward()
        optimizer.step()
    seen = fedsim.observe(model, images, labels)

    parameters = {name: tensor.detach() for name, tensor in model.named_parameters()}
    norms = {name: tensor.norm() for name, tensor in seen.gradient.items()}

    def weighed(pixels):
        found = torch.func.grad(
            lambda chosen: nn.functional.cross_entropy(
                torch.func.functional_call(model, chosen, (pixels.view_as(images),)), labels
            )
        )(parameters)
        return torch.cat([found[name].flatten() / norms[name] for name in norms])

    weakest = torch.linalg.svd(jacobian(weighed, images.flatten()), full_matrices=False)[2][-1].view_as(images)
    assert float(weakest[0].norm()) > 0.999
    off = images + 1e-4 * weakest
    again = replace(seen, update=seen.replay(off, labels))
    bound = jacobian_bound(seen, Reconstruction(off, labels), again)
    worst = min(-10 * torch.log10((off - images).square().mean(dim=(1, 2, 3))))
    assert float(worst) - 10 < bound.psnr <= float(worst)


class Clamp(nn.Module):
    """To [least, 1], whose slope at its edges is 1."""

    def __init__(self, least):
        super().__init__()
        self.least = least

    def forward(self, images):
        return images.clamp(self.least, 1.0)


@pytest.mark.parametrize("least", [0.0, 0.2])
@pytest.mark.parametrize("inside", [1e-8, 1e-7])
def test_a_result_at_the_edge_of_a_clamp_is_not_certified(least, inside):
    """J has full rank there, and the darker pixel that the client had gives the same update; no pixel is below 0."""
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(48, 64), nn.Sigmoid(), nn.Linear(64, 10)
    model = nn.Sequential(Clamp(least), *layers)
    image = 0.25 + 0.5 * torch.rand(1, 3, 4, 4)
    image[0, 0, 0, 0] = 0.1
    seen = fedsim.observe(model, image, [3])
    given = image.clamp(min=least) + inside * (image < least)
    claim = Reconstruction(given, torch.tensor([3]), certificate=Certificate("certified", "a claim", {}))
    certificate = confirmed(seen, claim, jacobian_bound).certificate
    if least == 0.0:
        assert certificate.certified, certificate.reason
    else:
        assert certificate.status == "uncertified"
        assert "misses 1 of 48 numbers" in certificate.reason


class Alike(nn.Module):
    """One hidden layer, averaged over what is made of the image: a model cannot tell what one of these makes of it."""

    def __init__(self, channels, ways):
        super().__init__()
        self.hidden, self.head, self.ways = nn.Linear(36 * channels, 128), nn.Linear(128, 10), ways

    def forward(self, images):
        return self.head(sum(torch.sigmoid(self.hidden(way(images).flatten(1))) for way in self.ways))


def _turned(quarters):
    return lambda images: images.rot90(quarters, (2, 3))


def _ordered(*channels):
    return lambda images: images[:, list(channels)]


TWINS = {
    "none": ((), 1, 0.5, ""),
    "half a turn": ((_turned(2),), 1, 0.5, "turned by 180 degrees"),
    "quarter turns": (tuple(map(_turned, (1, 2, 3))), 1, 0.5, "turned by 90 degrees"),
    "the other diagonal": ((lambda images: images.mT.flip(2, 3),), 1, 0.5, "exchanged, upside down and mirrored"),
    "negative": ((torch.neg,), 1, 0.5, "in negative"),
    "negative, no image": ((torch.neg,), 1, 0.0, ""),
    "channels": ((_ordered(2, 0, 1), _ordered(1, 2, 0)), 3, 0.5, "with its channels in the order 1, 2, 0"),
}


@pytest.mark.parametrize("twin", TWINS)
def test_an_image_turned_or_of_other_colours_that_a_model_cannot_tell_is_not_certified(twin):
    others, channels, mean, words = TWINS[twin]
    torch.manual_seed(0)
    model = Alike(channels, (lambda images: images, *others))
    with torch.no_grad():
        model.hidden.weight *= 3
    image = torch.rand(1, channels, 6, 6, generator=torch.Generator().manual_seed(1))
    seen = fedsim.observe(model, image, [3], mean=(mean,) * channels, std=(0.5,) * channels)
    claim = Reconstruction(image, torch.tensor([3]), certificate=Certificate("certified", "a claim", {}))
    found = confirmed(seen, claim, jacobian_bound).certificate
    assert (found.status == "certified") == (not words), found.reason
    assert words in found.reason


def test_running_statistics_and_counters_have_no_part_in_it():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Sigmoid(), nn.Flatten(), nn.Linear(128, 10)
    )
    image = torch.rand(1, 3, 4, 4, dtype=torch.float64)
    seen = fedsim.observe(model.double(), image, torch.tensor([3]))
    result = Reconstruction(images=image, labels=torch.tensor([3]), certificate=Certificate("certified", ""))
    assert confirmed(seen, result, jacobian_bound).certificate.status == "certified"
