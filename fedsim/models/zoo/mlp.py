"""A fully connected network on the pixels themselves, registered with timm by name."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from timm.models import build_model_with_cfg, register_model
from torch import nn

from fedsim.models.zoo.plain import PlainNetwork, activation_of, untrained

default_cfgs = untrained("mlp_32", fixed_input_size=True)


class MLP(PlainNetwork):
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
        activated = activation_of(activation)
        if not hidden or min(hidden) < 1:
            raise ValueError(f"hidden={list(hidden)}: the width of at least one layer")
        height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in pairwise((in_chans * height * width, *hidden)):
            layers += [nn.Linear(fan_in, fan_out, bias=bias), activated()]
        super().__init__(nn.Sequential(*layers), nn.Linear(hidden[-1], num_classes, bias=bias))


@register_model
def mlp_32(pretrained: bool = False, **kwargs: Any) -> MLP:
    """MLP on 32-pixel pictures (`hidden`, `activation`, `bias`, `img_size` change it); untrained."""
    model: MLP = build_model_with_cfg(MLP, "mlp_32", pretrained, **kwargs)
    return model
