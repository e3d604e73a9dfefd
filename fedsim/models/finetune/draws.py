"""What is put into a model is drawn by a public seed, so that everybody puts in the same."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsim.determinism import torch_generator


def uniform(bound: float, shape: Sequence[int], seed: int, *purpose: str) -> Tensor:
    """Uniform within ±bound, float64."""
    drawn = torch.rand(*shape, generator=torch_generator(seed, *purpose), dtype=torch.float64)
    return (2 * drawn - 1) * bound
