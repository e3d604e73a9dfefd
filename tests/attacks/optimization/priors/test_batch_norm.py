from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from attacks.optimization.priors import BatchNormStatistics
from attacks.optimization.priors.batch_norm import batch_norm_distance, running_statistics
from defenses.model.precode import Precode
from fedsim.errors import ConfigError, NotApplicable
from fedsim.models import ModelSpec, Normaliser

CNN = (
    "test_efficientnet"  # timm's own test model: 13 BatchNorm layers, 0.1 million parameters, ImageNet's normalisation
)


def trained(state, seed=0):
    """Statistics as training could have left them."""
    rng = torch.Generator().manual_seed(seed)
    drawn = {}
    for name, tensor in state.items():
        if name.endswith("running_mean"):
            drawn[name] = 0.3 * torch.randn(tensor.shape, generator=rng, dtype=tensor.dtype)
        elif name.endswith("running_var"):
            drawn[name] = 0.5 + torch.rand(tensor.shape, generator=rng, dtype=tensor.dtype)
    return {**state, **drawn}


def slow(model, images, state):
    """In numpy, from the inputs of each layer."""
    inputs = []
    for name, layer in model.named_modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.register_forward_hook(lambda _, given, __, name=name: inputs.append((name, given[0].numpy())))
    with torch.no_grad():
        model.eval()(images)
    total = 0.0
    for name, array in inputs:
        channels = array.transpose(1, 0, 2, 3).reshape(array.shape[1], -1)
        means = np.array([np.mean(channel) for channel in channels])
        variances = np.array([np.mean((channel - channel.mean()) ** 2) for channel in channels])
        total += np.linalg.norm(means - state[f"{name}.running_mean"].numpy())
        total += np.linalg.norm(variances - state[f"{name}.running_var"].numpy())
    return total


@pytest.fixture(scope="module")
def victim(tools):
    seen = tools.observe(ModelSpec(CNN, 10, dtype="float64"), tools.photographs(32), [3, 7])
    return replace(seen, global_state=trained(seen.global_state))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("prior") / "cnn.safetensors"
    save_file(trained(ModelSpec(CNN, 7).build(3).state_dict(), seed=1), path)
    return str(path)


def test_victim_against_numpy_gradient_and_vmap(victim, candidates, cpu, check):
    term = BatchNormStatistics(1).prepare(victim, None, cpu)
    expected = slow(victim.build_model(), candidates[0], victim.global_state)
    assert float(term(candidates[0])) == pytest.approx(expected, rel=1e-9)
    check(term, candidates)


def test_behind_a_noisy_layer_the_term_is_that_without_noise(tools, candidates, cpu, check):
    defenses = {"precode": Precode(k=4, sample="always")}
    seen = tools.observe(ModelSpec(CNN, 10, dtype="float64"), tools.photographs(32), [3, 7], defenses=defenses)
    check(BatchNormStatistics(1).prepare(replace(seen, global_state=trained(seen.global_state)), None, cpu), candidates)


@pytest.mark.parametrize("resize", [None, 48])
def test_network_in_its_own_normalisation(resize, vit, candidates, checkpoint, cpu, check):
    network = {"name": CNN, "num_classes": 7, "checkpoint": checkpoint}
    term = BatchNormStatistics(1, "network", network, resize=resize).prepare(vit, None, cpu)
    model = ModelSpec(CNN, 7, checkpoint=checkpoint, dtype="float64").build(0)
    assert vit.mean != model.pretrained_cfg["mean"]
    seen = Normaliser(model)(vit.to_unit_range(candidates[0]))
    if resize is not None:
        seen = nn.functional.interpolate(seen, size=(resize, resize), mode="bilinear")
    assert float(term(candidates[0])) == pytest.approx(slow(model, seen, model.state_dict()), rel=1e-9)
    check(term, candidates)


def test_statistics_from_elsewhere(victim, candidates):
    model = victim.build_model().eval().requires_grad_(False)
    shared = dict(list(running_statistics(model).items())[:2])
    found = batch_norm_distance(model, candidates[0], shared)
    changed = {name: (mean + 5, variance) for name, (mean, variance) in shared.items()}
    assert float(batch_norm_distance(model, candidates[0], changed)) > float(found) > 0
    assert float(found) < float(batch_norm_distance(model, candidates[0]))
    with pytest.raises(ValueError, match="no BatchNorm layer"):
        batch_norm_distance(model, candidates[0], {})


def test_a_photograph_lies_nearer_than_noise_to_statistics_of_photographs(victim, tools, cpu):
    """The statistics of one picture as target: it costs nothing there, noise of the same colours a lot."""
    picture = (tools.photographs(64)[:1] - 0.5) / 0.25
    model = victim.build_model()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        for _ in range(20):  # statistics of a layer are those of what the layers before it now pass on
            model.train()(picture)
    seen = replace(victim, global_state=model.state_dict())
    term = BatchNormStatistics(1).prepare(seen, None, cpu)
    order = torch.randperm(64 * 64, generator=torch.Generator().manual_seed(0))
    shuffled = picture.flatten(2)[:, :, order].view_as(picture)
    assert float(term(picture)) < 0.5 * float(term(shuffled))


def test_models_without_statistics_are_refused(vit, tools, cpu):
    with pytest.raises(NotApplicable, match="has no BatchNorm statistics: give an image-prior network"):
        BatchNormStatistics(1).prepare(vit, None, cpu)
    fresh = tools.observe(ModelSpec(CNN, 10), tools.photographs(32), [3, 7])
    with pytest.raises(NotApplicable, match="untrained"):
        BatchNormStatistics(1).prepare(fresh, None, cpu)


def test_networks_without_statistics_are_refused(vit, tmp_path, checkpoint, cpu):
    fresh = tmp_path / "fresh.safetensors"
    save_file(ModelSpec(CNN, 10).build(0).state_dict(), fresh)
    network = {"name": CNN, "num_classes": 10, "checkpoint": str(fresh)}
    with pytest.raises(ConfigError, match="trained BatchNorm statistics"):
        BatchNormStatistics(1, "network", network).prepare(vit, None, cpu)
    grey = replace(vit, image_shape=(1, 32, 32))
    network = {"name": CNN, "num_classes": 7, "checkpoint": checkpoint}
    with pytest.raises(NotApplicable, match="reads 3 channels, not 1"):
        BatchNormStatistics(1, "network", network).prepare(grey, None, cpu)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": "server"}, "one of victim, network"),
        ({"source": "network"}, "a network with source=network"),
        ({"network": {"name": CNN, "pretrained": True}}, "a network with source=network"),
        ({"source": "network", "network": {"name": CNN}}, "an untrained network says nothing"),
        ({"source": "network", "network": {"name": CNN, "pretraind": True}}, "Did you mean 'pretrained'"),
        ({"source": "network", "network": {"pretrained": True}}, "a mapping with a name"),
        ({"source": "network", "network": {"name": "resnet51", "pretrained": True}}, "no such model"),
        ({"resize": 64}, "with source=network"),
    ],
)
def test_refused_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        BatchNormStatistics(1, **settings)
