"""Defenses that train on mixtures of a batch's own pictures: mixup, CutMix and InstaHide.

Partners come from the same batch, so a batch of one picture is mixed with nothing. Pictures are mixed as the model
reads them (normalised), and labels become shares of the classes.
"""

import math
from abc import abstractmethod
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from defenses.base import Batch, Defense, Plan
from defenses.settings import choice, flag, number, whole
from fedsim.effects import Effect, MixesImages
from fedsim.errors import ConfigError

PER = ("batch", "image")
TIGHTEST = 1.2
"""Least `max_share`·k of InstaHide: nearer to equal shares, almost every draw would be rejected."""


class _Mixing(Defense):
    """Mixes each batch unless its settings make it the identity."""

    name: ClassVar[str]
    partners: int

    def __init__(self) -> None:
        self._classes: int | None = None

    def wrap_model(self, model: nn.Module) -> nn.Module:
        about = getattr(model, "pretrained_cfg", None) or {}
        classes = about.get("outputs", getattr(model, "num_classes", None))  # counted, or as timm's models say
        if not isinstance(classes, int):
            raise ConfigError("defense", self.name, f"a model with num_classes, which {type(model).__name__} has not")
        self._classes = classes
        return model

    def effects(self) -> tuple[Effect, ...]:
        return () if self._is_identity() else (MixesImages(),)

    def check(self, plan: Plan) -> None:
        """Raises ConfigError where no batch has enough pictures to mix."""
        size = plan.client.get("batch_size")
        if isinstance(size, int) and size < self.partners:
            raise ConfigError("client.batch_size", size, f"{self.partners} or more: {self.name} mixes within a batch")

    def transform_batch(self, batch: Batch, rng: torch.Generator) -> Batch:
        if self._classes is None:
            raise RuntimeError(f"{self.name} learns the number of classes in wrap_model: call it first")
        if self._is_identity():
            return batch
        return self._mix(batch.images, class_shares(batch.labels, self._classes, batch.images.dtype), rng)

    @abstractmethod
    def _is_identity(self) -> bool:
        """Whether the settings ask for nothing."""

    @abstractmethod
    def _mix(self, images: Tensor, shares: Tensor, rng: torch.Generator) -> Batch:
        """Mixed pictures and shares."""


class MixUp(_Mixing):
    """mixup (Zhang et al., ICLR 2018): λx_i + (1-λ)x_j, and labels alike, with λ ~ Beta(alpha, alpha).

    x_j is picture i of the shuffled batch, as in the authors' code.

    Args:
        alpha: 0: λ = 1, nothing is mixed.
        per: one λ for a `batch` (the authors' code), or for each `image`.
    """

    name = "mixup"

    def __init__(self, alpha: float = 1.0, per: str = "batch") -> None:
        super().__init__()
        self.alpha = number("defense.mixup.alpha", alpha, "0 or more", lambda v: 0.0 <= v < math.inf)
        self.per = choice("defense.mixup.per", per, PER)
        self.partners = 1 if self._is_identity() else 2

    def _is_identity(self) -> bool:
        return self.alpha == 0.0

    def _mix(self, images: Tensor, shares: Tensor, rng: torch.Generator) -> Batch:
        kept = beta_shares(self.alpha, len(images) if self.per == "image" else 1, rng).expand(len(images))
        own = torch.arange(len(images))
        picked = torch.stack([own, torch.randperm(len(images), generator=rng)], dim=1)
        weights = torch.stack([kept, 1.0 - kept], dim=1)
        return Batch(mixture(images, picked, weights), mixture(shares, picked, weights))


class CutMix(_Mixing):
    """CutMix (Yun et al., ICCV 2019, section 3.1): a box of x_i is pasted over from x_j, labels by area.

    λ ~ Beta(alpha, alpha) sets the box, of sides W√(1-λ) and H√(1-λ), centred anywhere and cut off at the border;
    labels go by the area that is left. One box and one shuffle for a batch, and every batch (the authors' code also
    offers to leave some batches alone).

    Args:
        alpha: 0: λ = 1, nothing is pasted.
    """

    name = "cutmix"

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = number("defense.cutmix.alpha", alpha, "0 or more", lambda v: 0.0 <= v < math.inf)
        self.partners = 1 if self._is_identity() else 2

    def _is_identity(self) -> bool:
        return self.alpha == 0.0

    def _mix(self, images: Tensor, shares: Tensor, rng: torch.Generator) -> Batch:
        height, width = images.shape[-2:]
        rows, columns = cut_box(float(beta_shares(self.alpha, 1, rng)), height, width, rng)
        other = torch.randperm(len(images), generator=rng)
        pasted = images.clone()
        pasted[..., rows, columns] = images[other.to(images.device)][..., rows, columns]
        left = 1.0 - (rows.stop - rows.start) * (columns.stop - columns.start) / (height * width)
        picked = torch.stack([torch.arange(len(images)), other], dim=1)
        weights = torch.tensor([left, 1.0 - left], dtype=torch.float64).expand(len(images), 2)
        return Batch(pasted, mixture(shares, picked, weights))


class InstaHide(_Mixing):
    """Inside-dataset InstaHide (Huang et al., ICML 2020, section 4): σ∘Σ_j λ_j x_j with a random sign for each entry.

    λ is the authors' code's: absolute normal numbers over their sum, drawn again until none exceeds `max_share`. The
    k pictures differ (there they are as many shuffles of the whole data set, which may meet; cross-dataset InstaHide
    mixes in public pictures: not built). Labels are mixed, signs leave them alone. A batch smaller than k mixes all
    it has, by equal shares where `max_share` cannot be kept.

    Args:
        k: pictures in a mixture; 1: none are mixed.
        max_share: largest λ_j (c₁ in the paper).
        flip: draw the signs; without them it is a mixup of k pictures.
    """

    name = "instahide"

    def __init__(self, k: int = 4, max_share: float = 0.65, flip: bool = True) -> None:
        super().__init__()
        self.k = whole("defense.instahide.k", k, "a whole number, 1 or more", lambda v: v >= 1)
        self.max_share = number("defense.instahide.max_share", max_share, "0 to 1", lambda v: 0.0 <= v <= 1.0)
        if self.k > 1 and self.max_share * self.k < TIGHTEST:
            raise ConfigError("defense.instahide.max_share", max_share, f"{TIGHTEST}/k or more for shares to be random")
        self.flip = flag("defense.instahide.flip", flip)
        self.partners = self.k

    def _is_identity(self) -> bool:
        return self.k == 1 and not self.flip

    def _mix(self, images: Tensor, shares: Tensor, rng: torch.Generator) -> Batch:
        k = min(self.k, len(images))
        picked, weights = distinct_partners(len(images), k, rng), bounded_shares(len(images), k, self.max_share, rng)
        mixed = mixture(images, picked, weights) if k > 1 else images
        if self.flip:
            signs = torch.randint(0, 2, images.shape, generator=rng) * 2 - 1
            mixed = mixed * signs.to(images)
        return Batch(mixed, mixture(shares, picked, weights))


def class_shares(labels: Shaped[Tensor, "batch *classes"], classes: int, dtype: torch.dtype) -> Tensor:
    """[batch, classes]: shares as they are, classes as one-hot rows."""
    return labels if labels.ndim == 2 else F.one_hot(labels, classes).to(dtype)


def beta_shares(alpha: float, count: int, rng: torch.Generator) -> Float[Tensor, " count"]:
    """`count` draws of Beta(alpha, alpha), float64."""
    seed = int(torch.randint(0, 2**63 - 1, (), generator=rng))
    return torch.from_numpy(np.random.default_rng(seed).beta(alpha, alpha, count))


def mixture(
    entries: Float[Tensor, "batch *entry"], picked: Int64[Tensor, "batch k"], weights: Float[Tensor, "batch k"]
) -> Float[Tensor, "batch *entry"]:
    """Σ_j weights[b, j]·entries[picked[b, j]]."""
    picked, weights = picked.to(entries.device), weights.to(entries)
    mixed = torch.zeros_like(entries)
    for partner, weight in zip(picked.T, weights.T, strict=True):
        mixed = mixed + weight.reshape(-1, *[1] * (entries.ndim - 1)) * entries[partner]
    return mixed


def cut_box(kept: float, height: int, width: int, rng: torch.Generator) -> tuple[slice, slice]:
    """Rows and columns of a box of a share 1 - kept of the picture before the border cuts it."""
    side = (1.0 - kept) ** 0.5
    middle = int(torch.randint(height, (), generator=rng)), int(torch.randint(width, (), generator=rng))
    (top, bottom), (left, right) = (
        (max(0, centre - int(side * length) // 2), min(length, centre + int(side * length) // 2))
        for centre, length in zip(middle, (height, width), strict=True)
    )
    return slice(top, bottom), slice(left, right)


def distinct_partners(batch: int, k: int, rng: torch.Generator) -> Int64[Tensor, "batch k"]:
    """Each picture itself, then k - 1 different others at random."""
    order = torch.rand(batch, batch, generator=rng, dtype=torch.float64).fill_diagonal_(-1.0)
    return order.argsort(dim=1)[:, :k]


def bounded_shares(batch: int, k: int, largest: float, rng: torch.Generator) -> Float[Tensor, "batch k"]:
    """Rows of k shares that sum to 1, none above `largest`; equal ones where that leaves (almost) no choice."""
    if largest * k < TIGHTEST:
        return torch.full((batch, k), 1.0 / k, dtype=torch.float64)
    shares = torch.ones(batch, k, dtype=torch.float64)
    while bool((refused := shares.amax(dim=1) > largest).any()):
        drawn = torch.randn(int(refused.sum()), k, generator=rng, dtype=torch.float64).abs()
        shares[refused] = drawn / drawn.sum(dim=1, keepdim=True)
    return shares
