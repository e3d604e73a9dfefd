"""A fully connected network on the pixels themselves, registered with timm by name."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from jaxtyping import Float
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "leaky_relu": lambda: nn.LeakyReLU(0.2),
}

default_cfgs = generate_default_cfgs(
    {
        "mlp_32.untrained": {
            "input_size": (3, 32, 32),
            "mean": (0.5, 0.5, 0.5),
            "std": (0.5, 0.5, 0.5),
            "num_classes": 10,
            "fixed_input_size": True,
            "classifier": "fc",
        }
    }
)


class MLP(nn.Module):
    """Linear layers over the flattened picture, an activation after each but the last.

    Args:
        hidden: widths of the hidden layers.
        activation: relu | sigmoid | tanh | leaky_relu (slope 0.2).
        bias: whether the layers have biases; the bias attack lives on the first one's.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 32,
        hidden: Sequence[int] = (1024, 256),
        activation: str = "relu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation={activation}: one of {', '.join(ACTIVATIONS)}")
        if not hidden or min(hidden) < 1:
            raise ValueError(f"hidden={list(hidden)}: the width of at least one layer")
        height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in pairwise((in_chans * height * width, *hidden)):
            layers += [nn.Linear(fan_in, fan_out, bias=bias), ACTIVATIONS[activation]()]
        self.num_classes = num_classes
        self.body = nn.Sequential(*layers)
        self.fc = nn.Linear(hidden[-1], num_classes, bias=bias)

    def get_classifier(self) -> nn.Module:
        return self.fc

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        logits: Tensor = self.fc(self.body(x))
        return logits


@register_model
def mlp_32(pretrained: bool = False, **kwargs: Any) -> MLP:
    """MLP on 32-pixel pictures (`hidden`, `activation`, `bias`, `img_size` change it); untrained."""
    model: MLP = build_model_with_cfg(MLP, "mlp_32", pretrained, **kwargs)
    return model
