"""One model of MJP's tables: trained in a federation, then measured by `fedsim-measure`'s own code."""

from pathlib import Path
from typing import Any

from experiments.cli.call import console
from experiments.cli.logs import quiet_libraries
from experiments.cli.progress import Bars
from experiments.matrix.units import quiet
from experiments.measure.command import PassesBar, measure_subject
from experiments.measure.subjects import Subject, load_subjects
from experiments.studies.harness.federation import run_folder, train
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Unit
from fedsim.settings.commands import MeasureConfig
from fedsim.settings.composition import Config
from fedsim.settings.schema import parse
from fedsim.simulation.ray_cluster import quiet_environment


def run_unit(unit: Unit) -> list[Entry]:
    """One entry: the model's record in the `measures.json` that `fedsim-measure` would write.

    Settings of the unit: `run`, those of the federated run; `measure`, those of `fedsim-measure`; `name`.
    """
    quiet_environment()
    quiet_libraries()
    folder = run_folder(unit.out, unit.key)
    with quiet():
        train(unit.settings["run"], folder)
        (subject,) = subjects(unit.settings["measure"], {unit.settings["name"]: folder})
        with Bars(console) as bars:
            record = measure_subject(subject, parse(MeasureConfig, unit.settings["measure"]), PassesBar(bars, 1))
    return [{**record, "folder": str(folder.relative_to(unit.out))}]


def subjects(measuring: Config, folders: dict[str, Path]) -> list[Subject]:
    """The models of finished runs, by the names to show."""
    named: dict[str, Any] = {"runs": [str(folder) for folder in folders.values()], "names": list(folders)}
    return load_subjects(parse(MeasureConfig, {**measuring, **named}))
