"""The networks beside the ViTs: built by name, of any picture size, with what their papers say of them."""

import pytest
import torch
from torch import nn

from fedsim.errors import ConfigError
from fedsim.models import ModelSpec, find_roles, input_size, normalisation
from fedsim.settings.composition import image_side

NAMES = ["lenet_dlg_32", "mlp_32", "cnn_rgap_32", "resnet18_cifar_32"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("side", [None, 16])
def test_any_picture_size(name, side):
    model = ModelSpec(name, 7, img_size=side).build(0).eval()
    assert input_size(model) == (side or 32) == image_side({"name": name, "img_size": side})
    assert model(torch.rand(2, 3, input_size(model), input_size(model))).shape == (2, 7)
    roles = find_roles(model)
    assert (roles.head_weights, roles.patch_weight) == (("fc.weight",), None)
    assert any("no patch embedding" in obstacle for obstacle in roles.obstacles)


@pytest.mark.parametrize("name", ["resnet18", "convnext_atto"])
def test_timms_own_networks_take_the_size_too(name):
    model = ModelSpec(name, 7, img_size=32).build(0).eval()
    assert input_size(model) == 32
    assert normalisation(model) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert input_size(ModelSpec(name, 7).build(0)) > 32, "the size of one model is not that of the next"
    same = ModelSpec(name, 7).build(0).state_dict()
    assert all(torch.equal(tensor, same[key]) for key, tensor in model.state_dict().items())


def test_lenet_is_dlgs():
    model = ModelSpec("lenet_dlg_32", 100).build(0)
    convs = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert [conv.stride[0] for conv in convs] == [2, 2, 1]
    assert {(conv.out_channels, conv.kernel_size, conv.padding) for conv in convs} == {(12, (5, 5), (2, 2))}
    assert model.fc.in_features == 768
    assert not any(isinstance(module, nn.ReLU | nn.MaxPool2d) for module in model.modules())
    for parameter in model.parameters():
        assert (0.45 if parameter.ndim > 1 else 0.2) < float(parameter.detach().abs().max()) <= 0.5
    deeper = ModelSpec("lenet_dlg_32", 10, kwargs={"depth": 4}).build(0)
    assert sum(isinstance(module, nn.Conv2d) for module in deeper.body) == 4


def test_the_mlp_is_as_configured():
    model = ModelSpec("mlp_32", 10, kwargs={"hidden": [64, 32], "activation": "sigmoid", "bias": False}).build(0)
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(3072, 64), (64, 32), (32, 10)]
    assert all(layer.bias is None for layer in linear)


def test_rgaps_network_has_nothing_that_cannot_be_undone():
    model = ModelSpec("cnn_rgap_32", 10).build(0)
    assert {type(m) for m in model.modules()} <= {
        type(model),
        nn.Sequential,
        nn.Conv2d,
        nn.LeakyReLU,
        nn.Flatten,
        nn.Linear,
    }
    assert not any("bias" in name for name, _ in model.named_parameters())
    assert model.fc.in_features == 3200


def test_the_cifar_stem():
    model = ModelSpec("resnet18_cifar_32", 10).build(0)
    assert (model.conv1.kernel_size, model.conv1.stride) == ((3, 3), (1, 1))
    assert isinstance(model.maxpool, nn.Identity)
    assert sum(p.numel() for p in model.parameters()) == 11_173_962, "the ResNet-18 of Inverting Gradients"
    model(torch.rand(2, 3, 32, 32)).sum().backward()
    assert all(float(p.grad.abs().max()) > 0 for p in model.parameters() if p.ndim == 4)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("mlp_32", {"kwargs": {"activation": "gelu"}}, "one of relu"),
        ("mlp_32", {"kwargs": {"hidden": []}}, "at least one layer"),
        ("cnn_rgap_32", {"kwargs": {"layers": [[3, 3]]}}, "channels, kernel, stride, padding"),
        ("cnn_rgap_32", {"kwargs": {"activation": "gelu"}}, "one of relu"),
        ("lenet_dlg_32", {"kwargs": {"depth": 1}}, "at least 2"),
        ("resnet18_cifar_32", {"kwargs": {"stem_type": "deep"}}, "one convolution"),
        ("resnet18", {"img_size": 32, "patch_size": 4}, "patch_size"),
        ("resnet18", {"img_size": 32, "kwargs": {"depht": 1}}, "depht"),
    ],
)
def test_refusals(name, settings, words):
    with pytest.raises(ConfigError, match=words):
        ModelSpec(name, 10, **settings).build(0)
