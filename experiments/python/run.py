"""`fedsim.run`: a federated run, as the command does it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.cli.call import on_stderr
from experiments.cli.logs import libraries_silenced
from experiments.python.load_config import load_config
from experiments.python.results import attack_table, read_results
from experiments.run.command import run_federated
from experiments.run.resumed import read_resumed
from fedsim.report.render import build_report
from fedsim.report.run.read import read_run
from fedsim.report.run.verdict import verdict
from fedsim.result import AttackResult
from fedsim.storage.json_lines import rows

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Run:
    """A run folder.

    Attributes:
        folder: holds everything that the run left behind; absolute, as a notebook may go to another.
    """

    folder: Path

    @property
    def metrics(self) -> "pd.DataFrame":
        """One row a round: what was evaluated, how many clients answered, who failed."""
        import pandas as pd

        return pd.json_normalize(list(rows(self.folder / "metrics.jsonl")))

    @property
    def results(self) -> list[AttackResult]:
        """Each attack's result on each update that the server kept."""
        return read_results(self.folder)

    @property
    def attacks(self) -> "pd.DataFrame":
        """One row an attack: updates, refusals, certified, PSNR in dB beside a guess's, labels, seconds."""
        return attack_table({"": self.folder}).drop(columns="defense", errors="ignore")

    def report(self) -> Path:
        """Build the page anew from the folder's files; its path."""
        return build_report(self.folder)

    def __str__(self) -> str:
        return verdict(read_run(self.folder)).line

    def _repr_html_(self) -> str:
        return str(self.attacks.to_html())


def run(*overrides: str, run_dir: Path | str | None = None, **settings: Any) -> Run:
    """Train a federation under the eyes of a curious server, and attack what its clients send.

    Args:
        overrides: as for the command `fedsim`: `"strategy=fedavg"`, `"defense=[fixed_pe]"`.
        run_dir: a new folder; None: the one that an override names, else one below `runs`, named by the time.
        settings: values by name: `num_rounds=3, defense=["fixed_pe"], client={"batch_size": 4}`; `resume=RUN` goes on
            with the run in that folder.

    Raises:
        ConfigError: a setting cannot work; nothing has been started then.
        RunError: the run could not go on; what had finished is in its folder.
    """
    given = settings if run_dir is None else {**settings, "run_dir": str(run_dir)}
    words = [f"{key}={value}" for key, value in given.items() if (key, value) != ("resume", None)]
    if (resumed := read_resumed([*overrides, *words])) is not None:
        config, folder = resumed
    else:
        config = load_config("run", *overrides, **given)
        folder = Path(config["run_dir"]).expanduser()
    with on_stderr(), libraries_silenced():
        run_federated(config, folder)
    return Run(folder.resolve())
