"""timm's ResNet-18 with the stem of CIFAR pictures, which no timm argument gives; registered with timm by name."""

from typing import Any

from timm.models import build_model_with_cfg, register_model
from timm.models.resnet import BasicBlock, ResNet
from torch import nn

from fedsim.models.zoo.plain import untrained

default_cfgs = untrained(
    "resnet18_cifar_32", mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616), first_conv="conv1"
)


@register_model
def resnet18_cifar_32(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """ResNet-18 with a 3×3 stem of stride 1 and no max-pooling (He et al. 2016, section 4.2); untrained.

    The network of Inverting Gradients' CIFAR figures (Geiping et al. 2020). Unlike timm's it does not start the last
    BatchNorm of a block at zero, at which a block's convolutions would have no gradient at all.
    """
    settings = {"block": BasicBlock, "layers": (2, 2, 2, 2), "zero_init_last": False}
    model: ResNet = build_model_with_cfg(ResNet, "resnet18_cifar_32", pretrained, **{**settings, **kwargs})
    stem = model.conv1
    if not isinstance(stem, nn.Conv2d):
        raise ValueError("stem_type: the CIFAR stem is one convolution")
    small = nn.Conv2d(stem.in_channels, stem.out_channels, 3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(small.weight, mode="fan_out", nonlinearity="relu")
    model.set_submodule("conv1", small)
    model.set_submodule("maxpool", nn.Identity())
    return model
