"""The training and the audits of the demo, side by side, and the page that shows them all."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path

from experiments.audit.command import run_audit
from experiments.cli.call import console, print_what_can_be
from experiments.cli.logs import quiet_libraries
from experiments.cli.machine import cores
from experiments.cli.progress import Bars
from experiments.commands.stage import CommandStage
from experiments.python.load_config import load_config
from experiments.run.command import run_federated
from experiments.studies.harness.command import faults_in_one_line
from experiments.studies.harness.processes import spread
from fedsim.memory.kept import keep_memory
from fedsim.report.render import build_sweep_report
from fedsim.settings.composition import Config
from fedsim.simulation.ray_cluster import quiet_environment

TRAINING = "digits-training"
PHOTOS = (
    "model.name=vit_small_patch32_224",
    "audit.select=per_class",
    "audit.num_images=1",
    "attack=[patch_gradient,row_space]",
    "simulation=inline",
)
AUDITS: dict[str, tuple[str, ...]] = {
    "photos-undefended": (),
    "photos-withhold_pe": ("defense=[withhold_pe]",),
    "photos-frozen_pe": ("defense=[fixed_pe]", "defense.fixed_pe.kind=frozen"),
    "photos-sincos_pe": ("defense=[fixed_pe]", "attack=[patch_gradient,row_space,first_block]"),
}
"""One photograph in each update, of a ViT-S/32 at 224 pixels as it is initialised."""


def main(stage: CommandStage) -> None:
    """`python -m experiments.demo FOLDER [OVERRIDE …]`: the page's path is printed last.

    Overrides are of the audits: `audit.num_images=2`.
    """
    quiet_environment()
    keep_memory()
    quiet_libraries()
    print_what_can_be(sys.stdout)
    if len(sys.argv) < 2:
        sys.exit("usage: python -m experiments.demo FOLDER [OVERRIDE …]")
    folder, *overrides = sys.argv[1:]
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    stage.begin(root)
    with faults_in_one_line(stage.interrupted):
        page = run_demo(root, photos=[*PHOTOS, *overrides], processes=min(2, cores()))
    console.print(str(page), markup=False)


def run_demo(
    root: Path,
    training: Sequence[str] = (),
    photos: Sequence[str] = PHOTOS,
    audits: Mapping[str, Sequence[str]] = AUDITS,
    processes: int = 1,
) -> Path:
    """The training and the audits in folders of their own below `root`, and the page that puts them side by side.

    Args:
        training: Hydra overrides of `fedsim`.
        photos: those of every audit.
        audits: more of them, by the name of a folder.
        processes: 1 works in this one, and shows each run's own progress.
    """
    # The longest first: the last of the audits is that of the open case. All settings are read before any work.
    configs = {TRAINING: load_config("run", *training)}
    configs |= {name: load_config("audit", *photos, *audits[name]) for name in reversed(list(audits))}
    quiet = processes > 1
    pace = ", side by side: about a minute, the first is done after half of it" if quiet else ""
    console.print(f"{', '.join(configs)}{pace} …", markup=False)
    todo = ((name, (root / name, config, quiet)) for name, config in configs.items())
    with Bars(console) if quiet else nullcontext() as bars:
        if bars is not None:
            bars.set("runs", 0, len(configs))
        for number, (name, _) in enumerate(spread(_run, todo, processes), start=1):
            verdict = json.loads((root / name / "summary.json").read_text(encoding="utf-8"))["verdict"]
            console.print(f"{number}/{len(configs)} {name} · {verdict['level']}: {verdict['sentence']}", markup=False)
            if bars is not None:
                bars.set("runs", number, len(configs))
    return build_sweep_report(root)


def _run(task: tuple[Path, Config, bool]) -> None:
    folder, config, quiet = task
    folder.mkdir(parents=True, exist_ok=True)
    if not console.is_terminal:  # there the bar tells
        console.print(f"{folder.name} begins", markup=False)
    run = run_federated if folder.name == TRAINING else run_audit
    config = {**config, "run_dir": str(folder)}
    if not quiet:
        run(config, folder)
        return
    quiet_libraries()
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        run(config, folder)
