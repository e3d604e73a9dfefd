"""A federated run as a unit of a study: its settings; begun, gone on with or done already."""

from pathlib import Path
from typing import Any

from experiments.run.command import run_federated
from fedsim.settings.composition import Config

UNOBSERVED = ("simulation=inline", "attack=[]", "tracker=[]", "audit=false", "observe.every=0", "observe.save=false")
"""Overrides of a training that nobody attacks."""


def one_cycle(rate: float, rounds: int, warm_up: float, weight_decay: float = 0.05) -> dict[str, Any]:
    """Of `strategy=fedsgd`: AdamW follows the gradients, its rate rises to this one and falls again."""
    cycle = {"max_lr": rate, "total_steps": rounds + 1, "pct_start": warm_up, "cycle_momentum": False}
    return {
        "optimizer": {"_target_": "torch.optim.AdamW", "lr": rate, "weight_decay": weight_decay},
        "scheduler": {"_target_": "torch.optim.lr_scheduler.OneCycleLR", **cycle},
    }


def run_folder(out: Path, key: str) -> Path:
    """The folder of a unit's federated run."""
    return out / "runs" / key


def train(config: Config, folder: Path) -> None:
    """The run in this folder to its end: from its last resume point where an earlier call was interrupted."""
    if (folder / "summary.json").is_file():
        return
    begun = (folder / "config.yaml").is_file()
    run_federated({**config, "run_dir": str(folder), "resume": str(folder) if begun else None}, folder)
