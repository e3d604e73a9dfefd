import pytest
import torch
from torch.func import functional_call

from attacks.generative import Generator, GeneratorLatent
from attacks.generative.spaces import FeatureSpace, WeightSpace, features_at
from fedsim.errors import ConfigError


@pytest.fixture
def latent(painter, small, cpu):
    observation, _ = small(2)
    return GeneratorLatent(Generator(module=painter()), norm_weight=0.5).prepare(observation, 2, cpu)


def test_a_latent_makes_the_models_input(latent, painter, rng):
    point = torch.stack([latent.initial(rng), latent.initial(rng)]).requires_grad_()
    images = latent.images(point)
    assert images.shape == (2, 2, 3, 16, 16)
    unit = latent.observation.to_unit_range(images[1])
    torch.testing.assert_close(unit, painter()(point[1]))
    torch.testing.assert_close(latent.penalty(point), 0.5 * point.square().mean(dim=(1, 2)))
    images.sum().backward()
    assert float(point.grad.abs().sum()) > 0


def test_recovered_labels_choose_the_class(painter, small, cpu, rng):
    observation, _ = small(2)
    labels = torch.tensor([3, 5])
    generator = painter(num_classes=10, trained_on=(3, 5))
    told = GeneratorLatent(Generator(module=generator)).prepare(observation, 2, cpu, labels)
    point = told.initial(rng)
    unit = observation.to_unit_range(told.images(point[None])[0])
    torch.testing.assert_close(unit, generator(point, labels))
    one = GeneratorLatent(Generator(module=generator)).prepare(observation, 2, cpu, torch.tensor([3, 412]))
    unit = observation.to_unit_range(one.images(point[None])[0])
    torch.testing.assert_close(unit[:1], generator(point[:1], labels[:1]))
    torch.testing.assert_close(unit[1:], generator(point[1:]), msg="a class that it does not have is any")
    for untold in (
        GeneratorLatent(Generator(module=generator), conditional=False).prepare(observation, 2, cpu, labels),
        GeneratorLatent(Generator(module=generator)).prepare(observation, 2, cpu),
    ):
        unit = observation.to_unit_range(untold.images(point[None])[0])
        torch.testing.assert_close(unit, generator(point))


def test_weights_start_as_trained_and_each_candidate_has_its_own(latent, painter, rng):
    z = latent.initial(rng)
    space = WeightSpace(latent, z)
    start = space.initial(rng)
    assert torch.equal(space.images(start[None]), latent.images(z[None]))
    points = torch.stack([start, start + 0.01 * torch.randn(start.shape, generator=rng)])
    module = painter()
    state, rest = {}, points[1]
    for name, parameter in module.named_parameters():
        state[name], rest = rest[: parameter.numel()].view_as(parameter), rest[parameter.numel() :]
    expected = functional_call(module, state, (z,))
    torch.testing.assert_close(space.observation.to_unit_range(space.images(points)[1]), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layer", [1, 2])
def test_features_start_where_the_latent_ended_and_stay_within_their_ball(latent, rng, layer):
    z = latent.initial(rng)
    space = FeatureSpace(latent, features_at(latent, z, layer), layer, 0.25)
    start = space.initial(rng)
    torch.testing.assert_close(space.images(start[None]), latent.images(z[None]))
    point = torch.stack([start + torch.randn(start.shape, generator=rng), start])
    space.project(point)
    moved = (point - start).flatten(2).abs().sum(dim=2)
    bound = 0.25 * start.flatten(1).abs().sum(dim=1)
    torch.testing.assert_close(moved[0], bound, rtol=1e-4, atol=0)
    assert torch.equal(point[1], start)


def test_features_go_on_from_features(latent, rng):
    z = latent.initial(rng)
    first = FeatureSpace(latent, features_at(latent, z, 1), 1, 1.0)
    point = first.initial(rng)
    torch.testing.assert_close(features_at(first, point, 2), features_at(latent, z, 2))


def test_a_wrong_weight_is_named(painter):
    with pytest.raises(ConfigError, match="norm_weight"):
        GeneratorLatent(Generator(module=painter()), norm_weight=-1)
