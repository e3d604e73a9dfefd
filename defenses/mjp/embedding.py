"""Which position embedding a token takes: its own, or the one that all masked positions share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

POSITION = "pos_embed"
UNKNOWN = "unknown_embed"
"""The shared embedding."""

INDEX = "index_embed"
"""The second table of Table 4's IDX, added to `pos_embed`; zeros at first."""

MaskSource = Callable[[], Bool[Tensor, "batch tokens"] | None]


def masked_embedding(
    embedding: Float[Tensor, "1 rows width"],
    unknown: Float[Tensor, " width"],
    mask: Bool[Tensor, "batch tokens"],
    mask_prefix: bool = False,
) -> Float[Tensor, "batch rows width"]:
    """The embedding of each picture, with `unknown` at its masked positions.

    A masked row of `embedding` gets a gradient of exactly zero from that picture.

    Args:
        mask_prefix: class tokens of pictures that have a mask take `unknown` too.
    """
    prefix = embedding.shape[1] - mask.shape[1]
    front = mask.any(dim=1, keepdim=True) if mask_prefix else mask.new_zeros(len(mask), 1)
    taken = torch.cat([front.expand(-1, prefix), mask], dim=1).to(embedding.device)
    return torch.where(taken[..., None], unknown, embedding)


class MaskedFeatures:
    """Stands for a timm model's `forward_features`: the stock one, on the embeddings that the mask asks for.

    timm's models add `pos_embed` [1, rows, width] to their tokens by broadcasting, so that one of its own for each
    picture can stand in its place while they run. Without a mask and an index table this is the stock forward pass.

    Args:
        mask: the mask of the batch to come, or None; called once for each forward pass.
    """

    def __init__(self, model: nn.Module, mask: MaskSource, mask_prefix: bool = False) -> None:
        self._model, self._mask, self._mask_prefix = model, mask, mask_prefix
        self._stock: Callable[..., Tensor] = model.forward_features  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> "MaskedFeatures":
        """A copied model asks the same defense for its masks."""
        copied = copy(self)
        memo[id(self)] = copied
        copied._model, copied._stock = deepcopy(self._model, memo), deepcopy(self._stock, memo)
        return copied

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        mask, parameters = self._mask(), self._model._parameters
        index = parameters.get(INDEX)
        if mask is None and index is None:
            return self._stock(x, *args, **kwargs)
        embedding = parameters[POSITION]
        assert embedding is not None
        if index is not None:
            embedding = embedding + index  # type: ignore[assignment]
        if mask is not None and (unknown := parameters.get(UNKNOWN)) is not None:
            if len(mask) != len(x):
                raise RuntimeError(f"mjp masked {len(mask)} pictures and the model was given {len(x)}")
            embedding = masked_embedding(embedding, unknown, mask, self._mask_prefix)  # type: ignore[assignment]
        with _standing_in(self._model, embedding):
            return self._stock(x, *args, **kwargs)


@contextmanager
def _standing_in(model: nn.Module, embedding: Tensor) -> Iterator[None]:
    """`embedding` is the model's position embedding within the block."""
    own = model._parameters[POSITION]
    model._parameters[POSITION] = embedding  # type: ignore[assignment]
    try:
        yield
    finally:
        model._parameters[POSITION] = own
