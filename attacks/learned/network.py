"""From hashed updates to pictures: the network of LTI (Wu et al. 2023)."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedsim.errors import ConfigError, one_of, require
from fedsim.models.generator import ConvGenerator

DECODERS = ("linear", "conv")


class InversionNetwork(nn.Module):
    """Fully connected layers, then pictures in [0, 1].

    The input is standardised entry by entry, by the mean and the deviation over the training updates.

    Args:
        inputs: length of a hashed update.
        batch: pictures behind an update.
        image_shape: (channels, height, width).
        hidden: width of each of the `depth` hidden layers.
        decoder: `linear`, the paper's: one layer to all pixels; `conv`: a code for each picture and one small
            convolutional decoder for all of them.
        code: length of that code.
    """

    def __init__(
        self,
        inputs: int,
        batch: int,
        image_shape: tuple[int, int, int] | list[int],
        hidden: int = 3000,
        depth: int = 3,
        decoder: str = "linear",
        code: int = 256,
    ) -> None:
        super().__init__()
        one_of("network.decoder", decoder, DECODERS)
        for key, value in {"hidden": hidden, "depth": depth, "code": code}.items():
            require(f"network.{key}", value, value >= 1, "1 or more")
        channels, height, width = image_shape
        if decoder == "conv" and height != width:
            raise ConfigError("network.decoder", decoder, "linear for pictures that are not square")
        self.settings: dict[str, Any] = {
            "inputs": inputs,
            "batch": batch,
            "image_shape": list(image_shape),
            "hidden": hidden,
            "depth": depth,
            "decoder": decoder,
            "code": code,
        }
        self.batch, self.image_shape = batch, (channels, height, width)
        layers: list[nn.Module] = []
        for index in range(depth):
            layers += [nn.Linear(inputs if index == 0 else hidden, hidden), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        if decoder == "conv":
            self.last = nn.Linear(hidden, batch * code)
            self.paint: nn.Module = ConvGenerator(code, height, colours=channels)
        else:
            self.last = nn.Linear(hidden, batch * channels * height * width)
            self.paint = nn.Sequential(nn.Sigmoid(), nn.Unflatten(1, self.image_shape))
        self.mean = nn.Buffer(torch.zeros(inputs))
        self.deviation = nn.Buffer(torch.ones(inputs))
        self.mean_picture = nn.Buffer(torch.full(self.image_shape, 0.5))

    def standardise_by(self, updates: Float[Tensor, "updates inputs"]) -> None:
        """Take mean and deviation of each entry; one that never changes stays as it is."""
        deviation = updates.std(dim=0, correction=0)
        self.mean.copy_(updates.mean(dim=0))
        self.deviation.copy_(torch.where(deviation > 0, deviation, torch.ones_like(deviation)))

    def forward(self, updates: Float[Tensor, "updates inputs"]) -> Float[Tensor, "updates batch c h w"]:
        features = self.last(self.body((updates - self.mean) / self.deviation))
        images: Tensor = self.paint(features.unflatten(1, (self.batch, -1)).flatten(0, 1))
        grouped: Tensor = images.unflatten(0, (len(updates), self.batch))
        return grouped
