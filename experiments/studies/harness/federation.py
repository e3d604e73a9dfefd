"""A federated run as a unit of a study: begun, gone on with or done already."""

from pathlib import Path

from experiments.run.command import run_federated
from fedsim.settings.composition import Config


def run_folder(out: Path, key: str) -> Path:
    """The folder of a unit's federated run."""
    return out / "runs" / key


def train(config: Config, folder: Path) -> None:
    """The run in this folder to its end: from its last resume point where an earlier call was interrupted."""
    if (folder / "summary.json").is_file():
        return
    begun = (folder / "config.yaml").is_file()
    run_federated({**config, "run_dir": str(folder), "resume": str(folder) if begun else None}, folder)
