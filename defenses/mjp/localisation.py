"""Dense absolute localisation (DAL): unmasked position embeddings tell their row and column (Ren et al. 2023, 3.3)."""

import math
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from fedsim.determinism import seeded_globals

HEADS = ("none", "linear", "nonlinear", "nonlinear3", "pca")
COORDINATES = ("grid", "unit")
LOCALISER = "dal"
"""The submodule that holds the regression. The forward pass does not use it."""

PCA_ITERATIONS = 5


@dataclass(frozen=True)
class Weight:
    """λ by round: from 0 up to `peak` in `warmup_rounds`, then by half a cosine to `final` in `decay_rounds`.

    Without warm-up it starts at `peak`, in round 0 already; without `decay_rounds` it stays there.
    """

    peak: float
    warmup_rounds: int = 0
    decay_rounds: int | None = None
    final: float = 0.0

    def at(self, server_round: int) -> float:
        if server_round < self.warmup_rounds:
            return self.peak * server_round / self.warmup_rounds
        if self.decay_rounds is None:
            return self.peak
        done = min(1.0, (server_round - self.warmup_rounds) / self.decay_rounds)
        return self.final + (self.peak - self.final) * 0.5 * (1.0 + math.cos(math.pi * done))


class Localiser(nn.Module):
    """Regresses position embeddings to grid coordinates; the loss is its output.

    Args:
        head: `linear` D→2; `nonlinear` D→D, ReLU →2 (the released code); `nonlinear3` D→D→D→2 (the paper); `pca`: the
            projection on the first two principal directions, without parameters.
        unit: coordinates divided by the grid's sides instead of row and column numbers.
    """

    coordinates: Tensor

    def __init__(self, head: str, width: int, grid: tuple[int, int], unit: bool = False) -> None:
        super().__init__()
        self.head = head
        hidden = {"linear": 0, "nonlinear": 1, "nonlinear3": 2, "pca": 0}[head]
        with seeded_globals(0, "mjp-localiser"):  # a fixed draw: every party builds the same model
            layers: list[nn.Module] = []
            for _ in range(hidden):
                layers += [nn.Linear(width, width), nn.ReLU()]
            self.layers = nn.Sequential(*layers, *([] if head == "pca" else [nn.Linear(width, 2)]))
            for layer in self.layers:
                if isinstance(layer, nn.Linear):
                    nn.init.trunc_normal_(layer.weight, std=0.02)
                    nn.init.zeros_(layer.bias)
        self.register_buffer("coordinates", grid_coordinates(grid, unit), persistent=False)

    def forward(self, embedding: Float[Tensor, "tokens width"], share: Float[Tensor, " tokens"]) -> Float[Tensor, ""]:
        """Σ_n share_n·|g(e_n) - (row, column)_n|, mean over the two coordinates; see `unmasked_share`.

        In the parameters' own precision, whatever the training's: QR decompositions have no other on CUDA.
        """
        kind = embedding.device.type
        with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
            pca = self.head == "pca"
            found = embedding @ principal_directions(embedding[share > 0]) if pca else self.layers(embedding)
            distance = (found - self.coordinates).abs().mean(dim=1)
            return share.to(distance) @ distance


def grid_coordinates(grid: tuple[int, int], unit: bool = False) -> Float[Tensor, "tokens 2"]:
    """Row and column of each position, from 0."""
    rows, columns = (torch.arange(side, dtype=torch.float32) / (side if unit else 1) for side in grid)
    return torch.cartesian_prod(rows, columns)


def unmasked_share(mask: Bool[Tensor, "batch tokens"]) -> Float[Tensor, " tokens"]:
    """The weight of each position in the mean, over pictures, of the mean over a picture's unmasked positions."""
    unmasked = ~mask.numpy()
    share = unmasked / np.maximum(unmasked.sum(axis=1, keepdims=True), 1)
    return torch.from_numpy(share.mean(axis=0))


@torch.no_grad()
def principal_directions(embedding: Float[Tensor, "tokens width"]) -> Float[Tensor, "width 2"]:
    """The first two right singular vectors of the centred embeddings, by five subspace iterations from a fixed start.

    They are constants of the loss: no gradient flows through them, as it does in the released code. The sign of each is
    the one whose projections have a positive mean, as row and column numbers have.
    """
    centred = embedding - embedding.mean(dim=0)
    start = torch.randn(embedding.shape[1], 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    directions = torch.linalg.qr(start.to(centred))[0]
    for _ in range(PCA_ITERATIONS):
        directions = torch.linalg.qr(centred.mT @ (centred @ directions))[0]
    found = centred @ directions
    directions = directions @ torch.linalg.eigh(found.mT @ found)[1].flip(1)  # the larger spread first
    signs = (embedding @ directions).mean(dim=0).sign()
    signed: Tensor = directions * torch.where(signs == 0, 1.0, signs)
    return signed
