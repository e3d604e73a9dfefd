"""Between pictures in [0, 1] and a model's input."""

import torch
from torch import Tensor, nn

from fedsim.models.architecture import normalisation


class Normaliser:
    """Per-channel normalisation in the model's dtype and on its device."""

    def __init__(self, model: nn.Module) -> None:
        parameter = next(model.parameters())
        mean, std = (torch.tensor(v, dtype=torch.float64).view(1, -1, 1, 1) for v in normalisation(model))
        self._mean, self._std = mean.to(parameter), std.to(parameter)

    def __call__(self, images: Tensor) -> Tensor:
        """[B,C,H,W] in [0, 1] to the model's input."""
        return (images.to(self._mean) - self._mean) / self._std

    def inverse(self, images: Tensor) -> Tensor:
        """The model's input back to [0, 1] on the CPU, in float64 so that it adds no error of its own."""
        return (images.detach().double() * self._std.double() + self._mean.double()).cpu()
