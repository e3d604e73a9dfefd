"""Accuracy and loss of a model on pictures."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsim.data import ImageSet
from fedsim.determinism import seeded_globals
from fedsim.float32 import full_float32
from fedsim.models.buffers import Buffers

CHUNK = 64


@dataclass(frozen=True)
class Evaluation:
    """Share of right top-1 predictions, and mean cross-entropy in nats."""

    accuracy: float
    loss: float


@torch.no_grad()
@full_float32()
def evaluate(
    model: nn.Module, pictures: ImageSet, normalise: Callable[[Tensor], Tensor], batch_size: int = 256
) -> Evaluation:
    """Evaluate in eval mode; buffers stay as they are. A model that draws there too draws the same at each call.

    Raises:
        ValueError: there are no pictures.
    """
    if len(pictures) == 0:
        raise ValueError("no pictures to evaluate on")
    before = Buffers(model)
    model.eval()
    right, loss = 0, 0.0
    with seeded_globals(0, "evaluate"):
        for start in range(0, len(pictures), batch_size):
            indices = range(start, min(start + batch_size, len(pictures)))
            logits = model(normalise(pictures.images(indices))).float()
            labels = pictures.labels[start : indices.stop].to(logits.device)
            right += int((logits.argmax(1) == labels).sum())
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
    before.restore()
    return Evaluation(right / len(pictures), loss / len(pictures))


@torch.no_grad()
def mean_softmax(
    model: nn.Module, pictures: ImageSet, normalise: Callable[[Tensor], Tensor], training_mode: bool, limit: int = 256
) -> Tensor:
    """[classes] mean predicted probabilities, float64, over at most `limit` pictures: p̂ of the label rules.

    The model's state stays as it was: in training mode BatchNorm would count these pictures in. Dropout draws the same
    at each call.
    """
    before = Buffers(model)
    model.train(training_mode)
    sums: list[Tensor] = []
    count = min(limit, len(pictures))
    with seeded_globals(0, "mean-softmax"):
        for part in np.array_split(range(count), -(-count // CHUNK)):  # none of one image, which BatchNorm may refuse
            images = normalise(pictures.images(part.tolist()))
            sums.append(model(images).double().softmax(1).sum(0))
    before.restore()
    return (torch.stack(sums).sum(0) / count).cpu()
