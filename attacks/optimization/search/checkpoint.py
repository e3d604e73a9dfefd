"""The state of a search as tensors and JSON, so that a killed one goes on where it was."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attacks.base import Frame

if TYPE_CHECKING:
    from attacks.optimization.search.search import SearchState

MEASURES = ("best", "best_matching", "reference", "improved_at", "done", "restarted")
"""What a search knows of each candidate besides its variables."""


def save_search(search: "SearchState") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Everything that `load_search` needs to go on with the same bits."""
    tensors = {name: getattr(search, name) for name in MEASURES}
    tensors |= {f"variables/{name}": variable.detach() for name, variable in search.variables.items()}
    tensors |= {f"best/{name}": variable for name, variable in search.best_variables.items()}
    tensors |= {f"optimiser/{name}": value for name, value in search.optimiser.memory().items()}
    tensors["generators"] = torch.stack([generator.get_state() for generator in search.generators])
    if search.group is not None and search.group.means is not None:
        tensors["group"] = search.group.means
    for victim, frames in enumerate(search.frames):
        tensors |= {f"frame/{victim}/{index}": frame.images for index, frame in enumerate(frames)}
    frames_record = [[[frame.step, frame.values] for frame in frames] for frames in search.frames]
    return tensors, {"step": search.step, "rows": search.rows, "frames": frames_record, "weights": search.weights}


def load_search(search: "SearchState", tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
    """Put back what `save_search` gave, into a search of the same settings."""
    search.step = int(record["step"])
    search.rows = record["rows"]
    search.weights = record["weights"]
    for name in MEASURES:
        setattr(search, name, tensors[name].to(search.device))
    with torch.no_grad():
        for name, variable in search.variables.items():
            variable.copy_(tensors[f"variables/{name}"])
            search.best_variables[name] = tensors[f"best/{name}"].to(search.device)
    memory = {name.removeprefix("optimiser/"): t for name, t in tensors.items() if name.startswith("optimiser/")}
    search.optimiser.remember(memory)
    for generator, state in zip(search.generators, tensors["generators"], strict=True):
        generator.set_state(state.clone())  # a view of a larger tensor would crash torch
    if search.group is not None and "group" in tensors:
        search.group.means = tensors["group"].to(search.device)
    search.frames = [
        [Frame(step, tensors[f"frame/{victim}/{index}"], values) for index, (step, values) in enumerate(frames)]
        for victim, frames in enumerate(record["frames"])
    ]
