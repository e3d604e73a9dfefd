"""One comparison page for a whole sweep."""

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from experiments.cli.call import console


class ComparisonPage(Callback):
    """Hydra calls it when the last run of `-m` is done."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        if not any(folder.glob("*/config.yaml")):
            return  # none of its runs has begun
        from fedsim.report.render import build_sweep_report

        page = build_sweep_report(folder)
        console.print(str(page), markup=False)
