"""Weights of studies: a short training, and trained ones for a model that defenses have changed."""

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from timm.data.imagenet_info import ImageNetInfo
from torch import Tensor, nn
from torch.nn import functional as F

from fedsim.errors import ConfigError
from fedsim.models import find_roles
from fedsim.models.checkpoint import read_checkpoint
from fedsim.update import State

SYNSET = re.compile(r"n\d{8}")
REPLACED = ("blocks.0.norm1.", "blocks.0.ls1.")
"""What APRIL's architecture leaves out of the first block."""


def train(
    model: nn.Module, inputs: Tensor, labels: Tensor, steps: int, batch: int, lr: float, rng: torch.Generator
) -> None:
    """Adam on batches drawn at random, in place."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        chosen = torch.randint(len(inputs), (batch,), generator=rng)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[chosen]), labels[chosen]).backward()
        optimizer.step()


def read_weights(path: Path) -> State:
    """A state dict from `.safetensors` or a torch file, read without running code from it.

    Raises:
        ConfigError: it holds none.
    """
    return dict(read_checkpoint(path, "--checkpoint").state)


def class_count(path: Path, head: str = "head.bias") -> int:
    """How many classes the weights tell apart.

    Args:
        head: name of the classifier's bias.

    Raises:
        ConfigError: they have no head by that name.
    """
    bias = read_weights(path).get(head)
    if bias is None:
        raise ConfigError("--checkpoint", path, f"weights of a timm model with {head}")
    return len(bias)


def load_weights(model: nn.Module, path: Path, class_names: Sequence[str]) -> None:
    """Put the weights into the model, in place; rows of the head move to the places of the folders' classes.

    Raises:
        ConfigError: they do not fit, or the classes cannot be told from the names of the folders.
    """
    state = read_weights(path)
    roles = find_roles(model)
    order = class_order(class_names, len(state[roles.head_biases[0]]), path)
    for name in (*roles.head_weights, *roles.head_biases):
        state[name] = state[name][order]
    if roles.direct_attention:
        state = {name: tensor for name, tensor in state.items() if not name.startswith(REPLACED)}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ConfigError("--checkpoint", path, f"weights that fit: {' '.join(str(error).split())[:200]}") from error


def class_order(class_names: Sequence[str], classes: int, path: Path) -> list[int]:
    """Rows of the head, those of the folders' classes first.

    Raises:
        ConfigError: fewer classes than folders and no ImageNet names, or several folders of one class.
    """
    found = [SYNSET.match(name) for name in class_names]
    if classes == 1000 and all(found):
        index = {name: row for row, name in enumerate(ImageNetInfo().label_names())}
        rows = [index.get(match.group(), -1) for match in found if match is not None]
        if -1 in rows or len(set(rows)) < len(rows):
            raise ConfigError("--checkpoint", path, "one folder for each ImageNet-1K class, named by its synset")
        chosen = set(rows)
        return rows + [row for row in range(classes) if row not in chosen]
    if classes != len(class_names):
        raise ConfigError("--checkpoint", path, f"weights for {len(class_names)} classes, or folders named by synsets")
    return list(range(classes))
