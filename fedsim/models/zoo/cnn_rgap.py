"""The network of R-GAP (Zhu & Blaschko 2021): convolutions without biases or pooling, registered with timm by name."""

from collections.abc import Sequence
from typing import Any

from timm.models import build_model_with_cfg, register_model
from torch import nn

from fedsim.models.zoo.plain import PlainNetwork, activation_of, untrained

LAYERS = ((12, 4, 2, 2), (36, 3, 2, 1), (36, 3, 1, 1), (36, 3, 1, 1), (64, 3, 2, 1), (128, 3, 1, 1))
"""Channels, kernel, stride and padding of CNN6's convolutions: every layer has more equations than unknowns."""

default_cfgs = untrained("cnn_rgap_32", fixed_input_size=True, first_conv="body.0")


class PlainCNN(PlainNetwork):
    """Convolutions, an invertible activation after each, and one linear layer; nothing that throws values away.

    Args:
        layers: channels, kernel, stride and padding of each convolution.
        activation: leaky_relu (slope 0.2) | tanh | sigmoid, and relu as the counter-example.
        bias: biases everywhere.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 32,
        layers: Sequence[Sequence[int]] = LAYERS,
        activation: str = "leaky_relu",
        bias: bool = False,
    ) -> None:
        activated = activation_of(activation)
        if not layers or any(len(layer) != 4 for layer in layers):
            raise ValueError(f"layers={layers}: [channels, kernel, stride, padding] of at least one convolution")
        height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
        body: list[nn.Module] = []
        for channels, kernel, stride, padding in layers:
            body += [nn.Conv2d(in_chans, channels, kernel, stride, padding, bias=bias), activated()]
            height, width = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
            in_chans = channels
        classifier = nn.Linear(in_chans * height * width, num_classes, bias=bias)
        super().__init__(nn.Sequential(*body, nn.Flatten()), classifier)


@register_model
def cnn_rgap_32(pretrained: bool = False, **kwargs: Any) -> PlainCNN:
    """R-GAP's CNN6 for 32-pixel pictures (`layers`, `activation`, `bias`, `img_size` change it); untrained."""
    model: PlainCNN = build_model_with_cfg(PlainCNN, "cnn_rgap_32", pretrained, **kwargs)
    return model
