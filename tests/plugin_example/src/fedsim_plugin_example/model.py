"""A model of one's own, known to timm by name: `model=wide_perceptron`."""

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

default_cfgs = generate_default_cfgs(
    {
        "wide_perceptron_16.untrained": {
            "input_size": (3, 16, 16),
            "mean": (0.5, 0.5, 0.5),
            "std": (0.5, 0.5, 0.5),
            "num_classes": 4,
            "fixed_input_size": True,
            "classifier": "fc",
        }
    }
)


class WidePerceptron(nn.Module):
    """The flattened picture, one hidden layer of `hidden` units, the classes."""

    def __init__(
        self, num_classes: int = 4, in_chans: int = 3, img_size: int | tuple[int, int] = 16, hidden: int = 512
    ) -> None:
        super().__init__()
        height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
        self.num_classes = num_classes
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(in_chans * height * width, hidden), nn.GELU())
        self.fc = nn.Linear(hidden, num_classes)

    def get_classifier(self) -> nn.Module:
        return self.fc

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.body(x))
        return logits


@register_model
def wide_perceptron_16(pretrained: bool = False, **kwargs: Any) -> WidePerceptron:
    """One wide hidden layer on 16-pixel pictures (`hidden`, `img_size` change it); untrained."""
    model: WidePerceptron = build_model_with_cfg(WidePerceptron, "wide_perceptron_16", pretrained, **kwargs)
    return model
