"""The mode of a module of somebody's own: clients put all of it into one."""

import pytest
import torch
from torch import nn

import fedsim
from fedsim.errors import ConfigError


def frozen(part):
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 5)).train()
    model.get_submodule(part).eval()
    return model


@pytest.mark.parametrize("part", ["2", "3"])
def test_a_part_in_another_mode_is_refused(part):
    model, images, labels = frozen(part), torch.rand(4, 3, 4, 4), torch.arange(4)
    gradients = torch.autograd.grad(nn.functional.cross_entropy(model(images), labels), list(model.parameters()))
    words = rf"model=Sequential: must be in one mode as a whole, .*: {part} is in evaluation mode and others are not"
    with pytest.raises(ConfigError, match=words):
        fedsim.observe(model, images, labels)
    with pytest.raises(ConfigError, match=words):
        fedsim.Observation.of(model, gradients, batch_size=4, image_shape=(3, 4, 4))
    with pytest.raises(ConfigError, match=words):
        fedsim.audit(model, (images, labels), ["labels"], num_images=2)


def test_a_part_without_a_mode_may_be_in_any_and_a_stated_mode_is_taken():
    images, labels = torch.rand(4, 3, 4, 4), torch.arange(4)
    assert fedsim.observe(frozen("4"), images, labels).protocol.training_mode
    assert not fedsim.observe(frozen("2"), images, labels, training_mode=False).protocol.training_mode
