"""Heads of classifiers in some state of training, what they read of images, and batches on them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedsim.data import FederatedData, ImageFolder
from fedsim.models import ModelSpec, Normaliser
from fedsim.public_images import MOST

REFERENCE = 64
CHUNK = 64
"""Images run at once: for a ResNet in training mode, the batch of its normalisation."""
CLASSES = 10
MLP = ModelSpec("mlp_32", CLASSES, kwargs={"hidden": [256, 64]})


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


@dataclass(frozen=True)
class MeasuredHead:
    """A classifier in some state, with what it reads of each private image.

    Attributes:
        labels: those that it was trained on.
        mean_probs: over auxiliary images.
    """

    name: str
    accuracy: float
    weight: Float[Tensor, "classes features"]
    bias: Float[Tensor, "classes"]
    features: Float[Tensor, "images features"]
    labels: Int[Tensor, "images"]
    mean_probs: Float[Tensor, "classes"]

    def times(self, factor: float) -> "MeasuredHead":
        """A head that is surer of everything."""
        probs = self.mean_probs.log().mul(factor).softmax(dim=0)
        name = f"{self.name}, head × {factor:g}"
        return replace(self, name=name, weight=factor * self.weight, bias=factor * self.bias, mean_probs=probs)


def trained(
    name: str, spec: ModelSpec, pictures: GroupedImages, fit: "Fit", steps: Sequence[int] = (0, 10, 30, 100, 300)
) -> Iterator[MeasuredHead]:
    """The head after more and more training, on the images' labels and on random ones."""
    noise = torch.randint(CLASSES, pictures.labels.shape, generator=torch.Generator().manual_seed(7))
    for labels, said in ((pictures.labels, ""), (noise, ", label noise")):
        model = spec.build(0).train()
        done = 0
        for target in steps:
            if target == 0 and said:
                continue
            fit(model, pictures.images, labels, target - done)
            done = target
            yield head_of(f"{name}, {target} steps{said}", model, pictures, labels)


def head_of(name: str, model: nn.Module, pictures: GroupedImages, labels: Int[Tensor, "images"]) -> MeasuredHead:
    head: nn.Linear = model.get_classifier()  # type: ignore[operator]
    weight, bias = head.weight.detach().clone(), head.bias.detach().clone()
    normalise = Normaliser(model)
    features, auxiliary = (head_inputs(model, head, normalise(p)) for p in (pictures.images, pictures.auxiliary))
    mean_probs = F.linear(auxiliary, weight, bias).softmax(dim=1).mean(dim=0)
    accuracy = float((F.linear(features, weight, bias).argmax(dim=1) == labels).double().mean())
    return MeasuredHead(name, round(accuracy, 2), weight, bias, features, labels, mean_probs)


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


Fit = Callable[[nn.Module, Tensor, Tensor, int], None]


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


def sgd(model: nn.Module, images: Tensor, labels: Tensor, steps: int) -> None:
    train(model, images, labels, steps, 0.01)


def adam(model: nn.Module, images: Tensor, labels: Tensor, steps: int) -> None:
    """On all images at once."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs = Normaliser(model)(images)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
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


def _as_trained(head: MeasuredHead, size: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    chosen = _drawn(len(head.labels), size, rng)
    return chosen, head.labels[chosen]


def _random_labels(head: MeasuredHead, size: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    return _drawn(len(head.labels), size, rng), _drawn(CLASSES, size, rng)


def _one_label(head: MeasuredHead, size: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    return _drawn(len(head.labels), size, rng), _drawn(CLASSES, 1, rng).repeat(size)


def _one_class(head: MeasuredHead, size: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    of_class = (head.labels == _drawn(CLASSES, 1, rng)).nonzero().flatten()
    return of_class[_drawn(len(of_class), size, rng)], head.labels[of_class[:1]].repeat(size)


def _burst(head: MeasuredHead, size: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Copies of one image, of the same label but for one batch in three."""
    chosen = _drawn(len(head.labels), 1, rng).repeat(size)
    labels = _drawn(CLASSES, size if int(_drawn(3, 1, rng)) == 0 else 1, rng)
    return chosen, labels.expand(size)


def _one_twice(head: MeasuredHead, size: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random labels, and one image twice."""
    chosen, labels = _random_labels(head, size, rng)
    chosen[1] = chosen[0]
    return chosen, labels


KINDS = {
    "as trained": _as_trained,
    "random": _random_labels,
    "one label": _one_label,
    "one class": _one_class,
    "burst": _burst,
    "one image twice": _one_twice,
}


def _drawn(most: int, size: int, rng: torch.Generator) -> Int[Tensor, "size"]:
    return torch.randint(most, (size,), generator=rng)
