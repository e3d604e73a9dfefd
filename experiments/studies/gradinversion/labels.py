"""What the label rules' batches are made of: features of clients' pictures, computed once in evaluation mode."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from experiments.benchmarks.heads import CHUNK, REFERENCE, head_inputs
from experiments.benchmarks.label_rules import KnownHead
from experiments.engine.setup import Setup
from fedsim.data import ImageSet
from fedsim.determinism import torch_generator
from fedsim.metrics.accuracy import mean_softmax
from fedsim.models import Normaliser


def known_features(setup: Setup, pictures: int, seed: int, device: str) -> KnownHead:
    """Features of at most so many pictures of clients, drawn at random."""
    data = setup.data
    model = setup.model.to(device).eval()
    normalise = Normaliser(model)
    head: nn.Linear = model.get_classifier()  # type: ignore[operator]
    held = data.train.subset(_drawn(len(data.train), pictures, seed, "clients"))
    public = setup.held.subset(_drawn(len(setup.held), 256, seed, "public"))
    noise = torch.rand(REFERENCE, *held.images([0]).shape[1:], generator=torch_generator(seed, "noise pictures"))
    return KnownHead(
        head.weight.detach().cpu(),
        head.bias.detach().cpu(),
        _features(model, head, normalise, held),
        held.labels,
        data.num_classes,
        mean_softmax(model, public, normalise, training_mode=False),
        head_inputs(model, head, normalise(noise)).cpu(),
    )


def _features(
    model: nn.Module, head: nn.Linear, normalise: Normaliser, images: ImageSet
) -> Float[Tensor, "pictures width"]:
    parts = torch.arange(len(images)).split(CHUNK)
    return torch.cat([head_inputs(model, head, normalise(images.images(part))).cpu() for part in parts])


def _drawn(count: int, most: int, seed: int, purpose: str) -> list[int]:
    order: list[int] = torch.randperm(count, generator=torch_generator(seed, "label batches", purpose)).tolist()
    return order[:most]
