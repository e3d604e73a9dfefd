"""torch.compile of what a client's batches go through; the model, its names and its parameters stay as they are."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Forward = Callable[[Tensor], Tensor]


def compiled(model: nn.Module) -> Forward:
    """The model's forward pass as compiled code, which shares its parameters; differentiating it is compiled too.

    One code serves all sizes of a batch but 1, so that no result depends on which sizes came before. Dropout draws what
    the model would draw.
    """
    run = torch.compile(model, options={"fallback_random": True})

    def forward(images: Tensor) -> Tensor:
        torch._dynamo.maybe_mark_dynamic(images, 0)
        scores: Tensor = run(images)
        return scores

    return forward
