"""What a classifier's head reads of images, its gradient in closed form, and batches of them."""

from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fedsim.data import FederatedData, ImageFolder
from fedsim.models import Normaliser
from fedsim.public_images import MOST

REFERENCE = 64
CHUNK = 64
"""Images run at once: for a ResNet in training mode, the batch of its normalisation."""


class GroupedImages:
    """Private pictures with labels in `classes` groups, and public ones: the first, `auxiliary`, go without."""

    def __init__(self, folder: Path, side: int, classes: int, limit: int) -> None:
        data = FederatedData(ImageFolder(str(folder), auxiliary_fraction=0.1, test_fraction=0.01), None, side)
        order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))[:limit]
        self.images = data.train.images(order)
        self.labels = torch.as_tensor(data.train.labels)[order] * classes // data.num_classes
        self.public = data.auxiliary.images(range(min(len(data.auxiliary), MOST)))
        self.public_labels = torch.as_tensor(data.auxiliary.labels)[: len(self.public)] * classes // data.num_classes
        self.auxiliary = self.public[:256]
        self.classes = classes


def head_inputs(model: nn.Module, head: nn.Linear, inputs: Tensor) -> Float[Tensor, "images features"]:
    """What the classifier reads of normalised images."""
    read: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, arguments: read.append(arguments[0]))
    with torch.no_grad():
        for part in inputs.split(CHUNK):
            model(part)
    hook.remove()
    return torch.cat(read)


def head_gradients(features: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """∂L/∂W = (1/B) Σ_k (p_k - y_k) h_kᵀ and ∂L/∂b of mean cross-entropy."""
    errors = F.linear(features, weight, bias).softmax(dim=1) - F.one_hot(labels, len(weight)).to(features)
    return errors.T @ features / len(labels), errors.mean(dim=0)


def train(model: nn.Module, images: Tensor, labels: Tensor, steps: int, lr: float) -> None:
    """SGD with momentum on batches of 32."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    normalise = Normaliser(model)
    rng = torch.Generator().manual_seed(2)
    for _ in range(steps):
        chosen = torch.randint(len(images), (32,), generator=rng)
        loss = F.cross_entropy(model(normalise(images[chosen])), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def draw(labels: Tensor, size: int, classes: int, kind: str, rng: torch.Generator) -> Tensor | None:
    """Pictures of as many classes, or of half as many; None where there are none such."""
    wanted = size if kind == "distinct" else min(classes, (size + 1) // 2)
    if wanted > classes or (kind == "repeated" and size == 1):
        return None
    allowed = torch.randperm(classes, generator=rng)[:wanted]
    if kind == "repeated":
        pool = torch.isin(labels, allowed).nonzero().flatten()
        return pool[torch.randperm(len(pool), generator=rng)[:size]] if len(pool) >= size else None
    pools = [(labels == c).nonzero().flatten() for c in allowed.tolist()]
    if any(len(pool) == 0 for pool in pools):
        return None
    return torch.stack([pool[int(torch.randint(len(pool), (1,), generator=rng))] for pool in pools])
