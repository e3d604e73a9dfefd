"""What can be answered without a library is answered without one."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HEAVY = ("torch", "torchvision", "timm", "ray", "flwr", "flwr_datasets", "datasets", "sklearn", "matplotlib", "numpy")

ASKED = [
    (0, "fedsim --help", "fedsim-report"),
    (0, "fedsim-audit --help attack", "patch_gradient"),
    (0, "fedsim-measure --help", "runs=[DIR,DIR]"),
    (0, "fedsim-matrix --help matrix", "every_defense: true"),
    (0, "fedsim-prior --help all", "mjp_pca"),
    (0, "fedsim-report --help", "FOLDER"),
    (0, "fedsim --cfg job defense=[mjp]", "mjp:"),
    (2, "fedsim defence=[mjp]", "Did you mean 'defense'"),
    (2, "fedsim client.batchsize=2", "Did you mean 'client.batch_size'"),
    (2, "fedsim-audit attack=[patch_gradiant]", "Did you mean 'patch_gradient'"),
    (2, "fedsim-audit -m attack=[patch_gradient],[dlgg]", "Did you mean 'dlg'"),
    (2, "fedsim-matrix matrix.sate=both", "Did you mean 'matrix.state'"),
    (2, "fedsim-prior kind=generater", "Did you mean 'generator'"),
    (2, "fedsim num_clients=0", "num_clients=0: must be a whole number of at least 1"),
    (2, "fedsim simulation.workers=none", "simulation.workers=none"),
    (2, "fedsim data=imagefolder data.path=nowhere", "data.path=nowhere: no such folder"),
    (2, "fedsim model.checkpoint=nowhere", "model.checkpoint=nowhere: there is no such file"),
    (2, "fedsim resume=nowhere", "resume=nowhere: must be the folder of an earlier run of fedsim"),
    (2, "fedsim-audit observation=nowhere", "observation=nowhere: there is none in this folder"),
    (2, "fedsim-measure runs=[nowhere]", "runs=nowhere: must be a folder of a fedsim run"),
    (2, "fedsim-measure measure.hard=nowhere", "measure.hard=nowhere: must be a folder of class folders"),
    (2, "fedsim-report nowhere", "no folder at nowhere"),
    (2, "fedsim mjp", "Did you mean defense=[mjp]?"),
    (2, "fedsim attack", "attack=OPTION chooses one"),
    (2, "fedsim --multrun", "Did you mean '--multirun'"),
    (2, "fedsim --help attak", "Did you mean 'attack'"),
]

CALLS = """
    import contextlib, io, json, sys
    from experiments.cli.call import run_command
    from experiments.commands.report import run_report
    from experiments.commands.stage import CommandStage

    answers = []
    for line in json.loads(sys.argv[1]):
        sys.argv = line.split()
        code = 0
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            try:
                run_report() if sys.argv[0] == "fedsim-report" else run_command(CommandStage(sys.argv[0]))
            except SystemExit as stop:
                code = stop.code or 0
        answers.append([code, out.getvalue(), [name for name in HEAVY if name in sys.modules]])
    print(json.dumps(answers))
"""


@pytest.mark.subprocess
def test_mistakes_and_help_import_no_library(tmp_path):
    calls = f"HEAVY = {HEAVY}\n{textwrap.dedent(CALLS)}"
    command = [sys.executable, "-c", calls, json.dumps([line for _, line, _ in ASKED])]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for (code, line, words), (found, text, heavy) in zip(ASKED, json.loads(done.stdout), strict=True):
        assert (found, heavy) == (code, []), f"{line}: {text}"
        assert words in text, f"{line}: {text}"
        assert code == 0 or len(text.splitlines()) == 1, f"{line}: {text}"
    assert list(tmp_path.iterdir()) == [], "nothing is left of runs that never began"


OPTIONS = """
    import contextlib, io, json, runpy, sys

    answers = []
    for module, word in json.loads(sys.argv[1]):
        sys.argv = [module, word]
        code = None
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            try:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            except SystemExit as stop:
                code = stop.code or 0
        answers.append([code, out.getvalue(), [name for name in HEAVY if name in sys.modules]])
    print(json.dumps(answers))
"""

ROOT = Path(__file__).parents[3]
SETTINGS = ("defense_step", "closed_form")
"""Benchmarks whose further words are settings of an audit, which Hydra reads."""


@pytest.mark.subprocess
def test_studies_and_benchmarks_read_their_options_before_they_import_a_library(tmp_path):
    folders = [path.parent for path in ROOT.glob("experiments/*/*/__main__.py")]
    files = [path for path in ROOT.glob("experiments/benchmarks/*.py") if '__name__ == "__main__"' in path.read_text()]
    names = sorted(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in [*folders, *files])
    assert len(names) >= 15
    asked = [(name, "--help") for name in names]
    asked += [(name, "--no-such-option") for name in names if not name.endswith(SETTINGS)]
    calls = f"HEAVY = {HEAVY}\n{textwrap.dedent(OPTIONS)}"
    command = [sys.executable, "-c", calls, json.dumps(asked)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for (name, word), (code, text, heavy) in zip(asked, json.loads(done.stdout), strict=True):
        assert (code, heavy) == (0 if word == "--help" else 2, []), f"{name} {word}: {text}"
        assert text.startswith("usage: "), f"{name} {word}: {text}"
