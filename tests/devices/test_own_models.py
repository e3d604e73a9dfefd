"""What is called from Python, with a model and images that are on the device already."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedsim

SHORT = {"dlg": {"steps": 1}, "gauss_newton": {"steps": 1, "restarts": 1}}


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 5))


@pytest.fixture
def images(rng):
    return torch.rand(1, 3, 4, 4, generator=rng)


@pytest.mark.usefixtures("few_last_steps")
@pytest.mark.parametrize("place", ["cpu", "device"])
@pytest.mark.parametrize("attack", ["fc_bias", "rgap", "dlg", "gauss_newton", "labels", "labels_llg"])
def test_gradients_from_there_are_attacked_anywhere(device, network, images, attack, place):
    model, images = network.to(device), images.to(device)
    loss = F.cross_entropy(model(images), torch.tensor([3], device=device))
    seen = fedsim.Observation.of(model, torch.autograd.grad(loss, list(model.parameters())), image_shape=(3, 4, 4))
    result = fedsim.attack(attack, seen, device="cpu" if place == "cpu" else device, **SHORT.get(attack, {}))
    assert result.status == "done", result.reason + result.fault
    assert fedsim.score(result, images, [3]).scores is not None
    assert next(model.parameters()).device.type == device.type, "the model stays where it is"


@pytest.mark.parametrize("share", [{}, {"share": "delta", "local_steps": 2}])
def test_a_client_is_observed(device, network, images, share):
    here = fedsim.observe(network, images, [3], **share)
    there = fedsim.observe(network.to(device), images.to(device), torch.tensor([3], device=device), **share)
    for name, tensor in here.update.tensors.items():
        torch.testing.assert_close(there.update.tensors[name], tensor)


def test_public_images_from_there_are_as_good(device, network, images):
    seen = fedsim.observe(network, images, [3])
    public = images.flip(-1).repeat(3, 1, 1, 1)
    found, here = (seen.with_public_images(some) for some in (public.to(device), public))
    assert torch.equal(found.image_prior.spectrum, here.image_prior.spectrum)
    assert torch.equal(found.public_images.pixels, here.public_images.pixels)


@pytest.mark.command
def test_an_audit(device, network, images, tmp_path):
    data = torch.utils.data.TensorDataset(images.repeat(2, 1, 1, 1), torch.tensor([3, 1]))
    found = fedsim.audit(network.to(device), data, "fc_bias", num_images=2, run_dir=tmp_path / "run")
    assert found.table[["updates", "refused", "failed"]].to_numpy().tolist() == [[2, 0, 0]]
