"""Weights on disk: whether they are a model's, and whether they were trained as defenses had made it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from fedsim.errors import ConfigError

UNREADABLE = (
    RuntimeError,
    SafetensorError,
    UnpicklingError,
    AttributeError,
    EOFError,
    OSError,
    LookupError,
    TypeError,
    ValueError,
)
"""What an empty file, a cut one, or one that holds something else raises."""

REDRAWN = "redrawn"
"""Under this key of a safetensors file's metadata stands the `redrawn_mark` of the model that it was saved from."""


@dataclass(frozen=True)
class Checkpoint:
    """A state dict, and the `redrawn_mark` of the model that it was saved from; empty where the file has none.

    `key` is the setting that named the file.
    """

    path: Path
    state: Mapping[str, Tensor]
    mark: str = ""
    key: str = "model.checkpoint"

    def fits(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether it holds a tensor of the same shape for each of these, and no other."""
        return self.state.keys() == tensors.keys() and all(
            isinstance(value, Tensor) and value.shape == tensors[name].shape for name, value in self.state.items()
        )

    def load_into(self, model: nn.Module) -> None:
        """Raises ConfigError where it does not fit."""
        try:
            model.load_state_dict(self.state)
        except UNREADABLE as error:
            raise _unfit(self.path, error, self.key) from error


def load_checkpoint(model: nn.Module, path: Path, key: str = "model.checkpoint") -> None:
    """Read weights into a model that has all of their names.

    Raises:
        ConfigError: the file cannot be read, or does not fit.
    """
    read_checkpoint(path, key).load_into(model)


def read_checkpoint(path: Path, key: str = "model.checkpoint") -> Checkpoint:
    """A `.safetensors` file, or a state dict that torch saved; nothing is unpickled.

    Raises:
        ConfigError: it is neither.
    """
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                mark = (file.metadata() or {}).get(REDRAWN, "")
            return Checkpoint(path, load_file(path), mark, key)
        state = torch.load(path, map_location="cpu", weights_only=True)
        state = state.get("model", state.get("state_dict", state))
        return Checkpoint(path, {str(name): value for name, value in state.items()}, key=key)
    except UNREADABLE as error:
        raise _unfit(path, error, key) from error


def redrawn_mark(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> str:
    """A digest of the values in `after` of the tensors that both have and that differ; empty where none does."""
    differing = sorted(n for n in before.keys() & after.keys() if not torch.equal(before[n], after[n]))
    digest = hashlib.sha256()
    for name in differing:
        digest.update(f"{name}\x1f".encode() + after[name].detach().cpu().float().numpy().tobytes())
    return digest.hexdigest() if differing else ""


def _unfit(path: Path, error: Exception, key: str) -> ConfigError:
    what = " ".join(str(error).split())[:200] or type(error).__name__
    return ConfigError(key, path, f"a state dict that fits the model: {what}")
