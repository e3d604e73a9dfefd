"""Reading what a run left."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

SMALL_AUDIT = ["data=digits", "model=vit_nano", "simulation=inline"]


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def final_state(folder: Path) -> dict[str, Tensor]:
    return load_file(sorted((folder / "checkpoints").glob("round-*.safetensors"))[-1])


def same_state(left: Path, right: Path) -> bool:
    a, b = final_state(left), final_state(right)
    return set(a) == set(b) and all(a[name].equal(b[name]) for name in a)
