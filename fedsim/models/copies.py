"""A model copied again and again: its structure is taken apart once, its tensors are cloned each time."""

import copy
import io
import pickle
from typing import Any

import torch
from torch import nn


class Copies:
    """As many copies as are asked for of a model that nobody changes meanwhile, each as `copy.deepcopy` makes it.

    `deepcopy` walks through every dictionary of every module in Python, which takes longer than the tensors of a small
    model; pickle does it in C. What cannot be pickled is copied by `deepcopy`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._tensors: list[torch.Tensor] = []
        self._structure = self._apart()

    def one(self) -> nn.Module:
        if self._structure is None:
            return copy.deepcopy(self._model)
        model: nn.Module = _Together(self._structure, self._tensors).load()
        return model

    def _apart(self) -> bytes | None:
        if any(hasattr(type(module), "__deepcopy__") for module in self._model.modules()):
            return None
        stream = io.BytesIO()
        try:
            _Apart(stream, self._tensors).dump(self._model)
        except (pickle.PicklingError, TypeError, AttributeError):  # a lambda, a lock, a function within a function
            return None
        return stream.getvalue()


class _Apart(pickle.Pickler):
    """Tensors by their place in a list."""

    def __init__(self, stream: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self._tensors = tensors

    def persistent_id(self, one: Any) -> int | None:
        if not isinstance(one, torch.Tensor):
            return None
        self._tensors.append(one)
        return len(self._tensors) - 1


class _Together(pickle.Unpickler):
    """Tensors as `deepcopy` copies them, those that the model holds twice once."""

    def __init__(self, structure: bytes, tensors: list[torch.Tensor]) -> None:
        super().__init__(io.BytesIO(structure))
        self._tensors = tensors
        self._copied: dict[int, Any] = {}

    def persistent_load(self, place: int) -> torch.Tensor:
        copied: torch.Tensor = copy.deepcopy(self._tensors[place], self._copied)
        return copied
