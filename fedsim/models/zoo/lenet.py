"""LeNet as gradient matching knows it: Deep Leakage from Gradients (Zhu et al. 2019), registered with timm by name."""

from typing import Any

from jaxtyping import Float
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

default_cfgs = generate_default_cfgs(
    {
        "lenet_dlg_32.untrained": {
            "input_size": (3, 32, 32),
            "mean": (0.5, 0.5, 0.5),
            "std": (0.5, 0.5, 0.5),
            "num_classes": 10,
            "fixed_input_size": True,
            "first_conv": "body.0",
            "classifier": "fc",
        }
    }
)


class LeNetDLG(nn.Module):
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
        super().__init__()
        if depth < 2 or channels < 1 or init <= 0:
            raise ValueError(f"depth={depth}, channels={channels}, init={init}: at least 2, 1, and above 0")
        height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
        layers: list[nn.Module] = []
        for number in range(depth):
            stride = 2 if number < 2 else 1
            layers += [nn.Conv2d(in_chans if number == 0 else channels, channels, 5, stride, padding=2), nn.Sigmoid()]
            height, width = -(-height // stride), -(-width // stride)
        self.num_classes = num_classes
        self.body = nn.Sequential(*layers)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(channels * height * width, num_classes)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -init, init)

    def get_classifier(self) -> nn.Module:
        return self.fc

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        logits: Tensor = self.fc(self.flatten(self.body(x)))
        return logits


@register_model
def lenet_dlg_32(pretrained: bool = False, **kwargs: Any) -> LeNetDLG:
    """DLG's LeNet for 32-pixel pictures (`depth`, `channels`, `init`, `img_size` change it); untrained."""
    model: LeNetDLG = build_model_with_cfg(LeNetDLG, "lenet_dlg_32", pretrained, **kwargs)
    return model
