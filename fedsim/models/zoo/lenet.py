"""LeNet as gradient matching knows it: Deep Leakage from Gradients (Zhu et al. 2019), registered with timm by name."""

from typing import Any

from timm.models import build_model_with_cfg, register_model
from torch import nn

from fedsim.models.zoo.plain import PlainNetwork, untrained

default_cfgs = untrained("lenet_dlg_32", fixed_input_size=True, first_conv="body.0")


class LeNetDLG(PlainNetwork):
    """5×5 convolutions of 12 channels with strides 2, 2, 1, 1, a sigmoid after each, and one linear layer.

    Twice differentiable everywhere, which L-BFGS on gradients needs. All weights and biases start uniform in
    ±`init`: sigmoids of torch's own small weights all but swallow the gradient.

    Args:
        depth: convolutions, at least 2; three in DLG's published code, four in the paper's figure.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 32,
        depth: int = 3,
        channels: int = 12,
        init: float | int = 0.5,
    ) -> None:
        if depth < 2 or channels < 1 or init <= 0:
            raise ValueError(f"depth={depth}, channels={channels}, init={init}: at least 2, 1, and above 0")
        height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
        layers: list[nn.Module] = []
        for number in range(depth):
            stride = 2 if number < 2 else 1
            layers += [nn.Conv2d(in_chans if number == 0 else channels, channels, 5, stride, padding=2), nn.Sigmoid()]
            height, width = -(-height // stride), -(-width // stride)
        super().__init__(nn.Sequential(*layers, nn.Flatten()), nn.Linear(channels * height * width, num_classes))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -init, init)


@register_model
def lenet_dlg_32(pretrained: bool = False, **kwargs: Any) -> LeNetDLG:
    """DLG's LeNet for 32-pixel pictures (`depth`, `channels`, `init`, `img_size` change it); untrained."""
    model: LeNetDLG = build_model_with_cfg(LeNetDLG, "lenet_dlg_32", pretrained, **kwargs)
    return model
