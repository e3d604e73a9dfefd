"""What is public about a defense, in words that attacks may ask for: how it acts, never what it drew."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Clips:
    """What is shared is scaled down to an L2 norm: by one factor, or by one for each example or tensor."""

    max_norm: float
    per: Literal["update", "example", "tensor"]


@dataclass(frozen=True)
class TransformsImages:
    """Each image is changed by itself before the model sees it, its label is not."""


@dataclass(frozen=True)
class MasksPositions:
    """Some positions take another embedding than their own, and the embeddings may have a loss of their own."""


@dataclass(frozen=True)
class Withholds:
    """Tensors are not shared, or have no gradient; the others are what they were."""


@dataclass(frozen=True)
class Unpublished:
    """A defense that does not say how it acts: everything that it could do is possible."""

    defense: str


Effect = Clips | TransformsImages | MasksPositions | Withholds | Unpublished
