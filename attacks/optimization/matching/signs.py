"""Matching an update of which only signs were shared."""

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.optimization.matching.objectives import TINY, Cosine
from fedsim.errors import require
from fedsim.update import State


class SignCosine(Cosine):
    """1 - cos(s, sign g') with s_l = tanh(g_l / (τ·mean|g_l|)), a sign that has a derivative.

    A cosine of g itself with signs weighs all coordinates of g' alike and those of g by their size, so that the true
    picture is far from its minimum. Here it is near it. The sign's shared scale does not matter. Ours.

    Args:
        temperature: τ; the smaller, the nearer to the sign, and the fewer coordinates have a derivative.
    """

    def __init__(self, temperature: float | int = 0.3, mask_zeros: bool = False) -> None:
        super().__init__(mask_zeros)
        require("objective.temperature", temperature, temperature > 0, "a positive number")
        self.temperature = temperature

    def value(self, found: State, target: State) -> Float[Tensor, ""]:
        soft = {name: torch.tanh(tensor / self._scale(tensor)) for name, tensor in found.items()}
        return super().value(soft, {name: tensor.sign() for name, tensor in target.items()})

    def replace_by_direction(self, found: State, target: State) -> Float[Tensor, ""]:
        """The general way: the cosine's own shortcut is another function's derivative."""
        return super(Cosine, self).replace_by_direction(found, target)

    def _scale(self, tensor: Tensor) -> Float[Tensor, ""]:
        return self.temperature * tensor.abs().mean() + TINY
