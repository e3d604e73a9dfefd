"""MJP's Table 5 (Ren et al. 2023): what closed forms get out of masked jigsaws, by one command.

Its options are in `options`.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from experiments.audit.command import choose_pictures
from experiments.cli.call import console
from experiments.cli.progress import Bars
from experiments.engine.setup import Setup, prepare
from experiments.studies.harness.ledger import Ledger, kept, settle
from experiments.studies.harness.processes import spread
from experiments.studies.harness.study import code_and_machine
from experiments.studies.mjp_table5.figure import write_figure
from experiments.studies.mjp_table5.job import Standing, TableJob, check, portions, read_checkpoints
from experiments.studies.mjp_table5.rows import MEAN, TableCase, choose, plan
from experiments.studies.mjp_table5.tables import write_table
from experiments.studies.mjp_table5.worker import public_sum, results, run_unit
from fedsim.settings.composition import Config


def run(options: argparse.Namespace) -> None:
    """From settings to the table and the figure.

    Raises:
        ConfigError: a setting cannot work, or another call is at work in the folder.
        RunError: a worker was killed.
    """
    check(options)
    job = TableJob(options, choose(plan(options.ratio), options.rows), read_checkpoints(options.checkpoint))
    configs = {case: job.config(case) for case in job.cases}
    setup = prepare(configs[job.cases[0]])
    chosen = choose_pictures(setup)
    with kept(options.out, job.settings(configs[job.cases[0]])) as ledger:
        _carry_out(job, configs, setup, chosen, ledger)


def _carry_out(
    job: TableJob, configs: Mapping[TableCase, Config], setup: Setup, chosen: Sequence[int], ledger: Ledger
) -> None:
    options = job.options
    for case, config in configs.items():
        settle(options.out / "cases" / f"{case.name}.json", {"model": config["model"], "defense": config["defense"]})
    by = code_and_machine(options.device)
    standing = Standing(ledger)
    with Bars(console) as bars:
        bars.set("pictures", 0, len(job.cases) * len(chosen), "the mean picture")
        public = _public(setup, options) if any(row.attack == MEAN for row in job.rows) else None
        todo = portions(job, configs, setup.data.train.ids, chosen, standing, public)
        units = ((portion, portion.unit) for portion in todo if portion.unit is not None)
        worker = results if options.workers == 1 else run_unit
        for portion, found in spread(worker, units, options.workers, lambda portion: portion.note):
            for entry in found:
                standing.add({**entry, "by": by})
            bars.set("pictures", portion.done, len(job.cases) * len(chosen), portion.note)
            bars.say(f"pictures {portion.done}/{len(job.cases) * len(chosen)}: {portion.note}")
    entries = [entry for entry in ledger.entries if entry["number"] < len(chosen)]
    write_table(job.rows, entries, options.out, bool(job.checkpoints))
    write_figure(job.rows, entries, min(options.shown, len(chosen)), options.out)
    console.print((options.out / "table5.md").read_text(encoding="utf-8"), markup=False)
    console.print(
        f"{options.out / 'table5.md'}\n{options.out / 'table5.csv'}\n{options.out / 'table5.png'}", markup=False
    )


def _public(setup: Setup, options: argparse.Namespace) -> Tensor:
    """The sum of the guess's pictures, kept beside the results."""
    path: Path = options.out / "public.safetensors"
    if not path.exists():
        save_file({"sum": public_sum(setup.data.train, options.seed)}, path)
    return load_file(path)["sum"]
