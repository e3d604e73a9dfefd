"""Weights on disk: whether they are a model's, and whether they were trained as defenses had made it."""

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
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

WRAPPED = ("module.", "_orig_mod.")
"""What DistributedDataParallel and torch.compile put before every name."""

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

    def but_head(self, model: nn.Module, head: Collection[str]) -> "Checkpoint":
        """The same with the model's own tensors of these names, whatever the file has."""
        own = {name: tensor for name, tensor in model.state_dict().items() if name in head}
        return replace(self, state={**{n: t for n, t in self.state.items() if n not in head}, **own})

    def load_into(self, model: nn.Module, head: Collection[str] = ()) -> None:
        """Raises ConfigError where it does not fit.

        Args:
            head: tensors that `model.checkpoint_head=false` would leave out.
        """
        if misfit := self._misfit(model.state_dict(), head):
            raise _unfit(self.path, misfit, self.key)
        try:
            model.load_state_dict(self.state)
        except UNREADABLE as error:
            raise _unfit(self.path, _said(error), self.key) from error

    def _misfit(self, tensors: Mapping[str, Tensor], head: Collection[str]) -> str:
        """What does not fit, names first; empty where all does."""
        lacking = [name for name in tensors if name not in self.state]
        foreign = [name for name in self.state if name not in tensors]
        if lacking or foreign:
            parts = [("it lacks {}", lacking), ("the model has no {}", foreign)]
            return ", ".join(words.format(_few(names)) for words, names in parts if names)
        shapes = {name: getattr(value, "shape", None) for name, value in self.state.items()}
        other = [name for name, shape in shapes.items() if shape != tensors[name].shape]
        if not other:
            return ""
        name = other[0]
        there = "no tensor" if shapes[name] is None else f"of shape {list(shapes[name] or ())}"
        said = f"{name} is {there}, not of shape {list(tensors[name].shape)}"
        if set(other) <= set(head):
            return f"{said}; only the head differs: model.checkpoint_head=false loads all but it"
        return said if len(other) == 1 else f"{said}, and {len(other) - 1} more differ"


def load_checkpoint(model: nn.Module, path: Path, key: str = "model.checkpoint") -> None:
    """Read weights into a model that has all of their names.

    Raises:
        ConfigError: the file cannot be read, or does not fit.
    """
    read_checkpoint(path, key, model.state_dict().keys()).load_into(model)


def read_checkpoint(path: Path, key: str = "model.checkpoint", names: Collection[str] = ()) -> Checkpoint:
    """A `.safetensors` file, or a state dict that torch saved; nothing is unpickled.

    Args:
        names: of the model's tensors; what wrappers put before them goes.

    Raises:
        ConfigError: it is neither.
    """
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                mark = (file.metadata() or {}).get(REDRAWN, "")
            return Checkpoint(path, _unwrapped(load_file(path), names), mark, key)
        state = torch.load(path, map_location="cpu", weights_only=True)
        state = state.get("model", state.get("state_dict", state))
        return Checkpoint(path, _unwrapped({str(name): value for name, value in state.items()}, names), key=key)
    except UNREADABLE as error:
        raise _unfit(path, _said(error), key) from error


def _unwrapped(state: dict[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    """Without what wrappers put before every name, unless the model has such names itself."""
    while state.keys().isdisjoint(names) and (
        prefix := next((one for one in WRAPPED if state and all(name.startswith(one) for name in state)), "")
    ):
        state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def redrawn_mark(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> str:
    """A digest of the values in `after` of the tensors that both have and that differ; empty where none does."""
    differing = sorted(n for n in before.keys() & after.keys() if not torch.equal(before[n], after[n]))
    digest = hashlib.sha256()
    for name in differing:
        digest.update(f"{name}\x1f".encode() + after[name].detach().cpu().float().numpy().tobytes())
    return digest.hexdigest() if differing else ""


def _unfit(path: Path, what: str, key: str) -> ConfigError:
    return ConfigError(key, path, f"a state dict that fits the model: {what}")


def _said(error: Exception) -> str:
    """Why a file could not be read; torch itself says it in paragraphs, or not at all."""
    text = " ".join(str(error).split())
    if kind := re.search(r"Unsupported (?:global: GLOBAL|operand|class) (\S+)", text):
        return f"it holds {kind[1]}, and only tensors are read; save model.state_dict()"
    if isinstance(error, LookupError | UnpicklingError | EOFError) or not text:
        return "it is no file that torch.save or safetensors wrote, or not a whole one"
    if isinstance(error, AttributeError):
        return "it holds no dictionary of tensors by name"
    return text[:200]


def _few(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
