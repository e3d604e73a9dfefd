"""The mode of a module of somebody's own: clients put all of it into one."""

import dataclasses

import numpy as np
import pytest
import timm
import torch
from timm.layers import ConvNormAct
from timm.models.resnet import BasicBlock, ResNet
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import fedsim
from fedsim.errors import ConfigError
from fedsim.models.own import _each, own_architecture, stated_shape


def frozen(part):
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 5)).train()
    model.get_submodule(part).eval()
    return model


class Caching(nn.Linear):
    def __init__(self):
        super().__init__(48, 5)
        self.register_buffer("cache", None, persistent=False)

    def forward(self, x):
        self.cache = x.flatten(1)
        return super().forward(self.cache)


def test_the_recipe_is_of_the_module_before_any_forward_pass():
    assert own_architecture(Caching(), (3, 4, 4)).build().cache is None


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


def test_a_model_in_evaluation_mode_is_not_of_a_client_that_is_said_to_have_trained_in_the_other():
    model = frozen("4").eval()
    protocol = fedsim.LocalProtocol(batch_size=2, steps=1, optimizer="sgd", lrs=(0.1,))
    given = {"delta": dict(model.named_parameters()), "image_shape": (3, 4, 4)}
    words = "protocol.training_mode=True: must be False, as 2 of the model is in evaluation mode; or call model.train"
    with pytest.raises(ConfigError, match=words):
        fedsim.Observation.of(model, protocol=protocol, **given)
    said = dataclasses.replace(protocol, training_mode=False)
    assert not fedsim.Observation.of(model, protocol=said, **given).protocol.training_mode
    assert fedsim.Observation.of(model.train(), protocol=protocol, **given).protocol.training_mode


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"std": [0.0, 1.0, 1.0]}, r"std=\(0.0, 1.0, 1.0\): must be finite numbers above 0"),
        ({"std": [-1.0, 1.0, 1.0]}, "std=.*finite numbers above 0"),
        ({"mean": [float("nan"), 0.0, 0.0]}, "mean=.*must be finite numbers"),
        ({"mean": [0.5]}, "mean=.*one number for each of 3 channels"),
    ],
)
def test_a_normalisation_that_cannot_be_is_refused(given, words):
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
    with pytest.raises(ConfigError, match=words):
        fedsim.observe(model, torch.rand(1, 3, 4, 4), [1], **given)


class OwnViT(VisionTransformer):
    """Its patches say how large its images are, and nothing what they are normalised by."""

    def __init__(self):
        super().__init__(16, 4, in_chans=1, embed_dim=8, depth=1, num_heads=1, num_classes=5)


class OwnPatches(nn.Sequential):
    """With one part of the name of timm's and a size of one side, as DINO's."""

    def __init__(self):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 4, 4, stride=4)
        self.patch_embed.img_size = 16
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))


def named():
    return timm.create_model("resnet10t", num_classes=5)


def small_resnet():
    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5, channels=(8, 8, 8, 8))


def around_a_layer():
    return nn.Sequential(ConvNormAct(3, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (named, (3, 176, 176)),
        (small_resnet, None),
        (OwnViT, (1, 16, 16)),
        (OwnPatches, None),
        (around_a_layer, None),
        (lambda: nn.Sequential(named()), None),
    ],
)
def test_images_are_normalised_as_the_model_says_and_else_not_at_all(make, says):
    assert stated_shape(make()) == says
    about = own_architecture(make(), says or (3, 16, 16)).module.pretrained_cfg
    stated = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    none = ((0.0,) * about["input_size"][0], (1.0,) * about["input_size"][0])
    assert (about["mean"], about["std"]) == (stated if make is named else none)


def test_a_normalisation_may_be_a_tensor_or_an_array_and_no_scalar():
    for given in (torch.tensor([0.5, 0.25, 1.0]), np.array([0.5, 0.25, 1.0])):
        assert _each("std", given, (1.0,), 3) == (0.5, 0.25, 1.0)
    for wrong in (0.5, torch.tensor(0.5), torch.zeros(3, 2), ["a", "b", "c"]):
        with pytest.raises(ConfigError, match="must be one number for each of 3 channels"):
            _each("std", wrong, (1.0,), 3)


def test_a_model_of_one_output_has_no_gradient_and_is_refused():
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 1))
    with pytest.raises(ConfigError, match="must be one of 2 outputs at least"):
        fedsim.observe(model, torch.rand(1, 3, 4, 4), [0])
