"""The package in plugin_example, built and installed as any other, works in every command without a change here."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.experiments.mortal_runs import COMMANDS, MortalRuns
from tests.experiments.run_files import rows, same_state

pytestmark = [pytest.mark.subprocess, pytest.mark.usefixtures("warm")]  # all in one process of xdist

EXAMPLE = Path(__file__).parent / "plugin_example"
PARTS = {"attack": "bias_rows", "defense": "random_mask", "data": "shapes", "model": "wide_perceptron"}
CHOSEN = ["data=shapes", "data.count=40", "model=wide_perceptron"]
INLINE = ["simulation=inline"]
FEDERATION = ["num_clients=2", "num_rounds=2", "observe.every=1", "tracker=[]", "resume_every_seconds=0"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy, so that building leaves nothing in the checkout."""
    return Path(shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("source") / "plugin_example"))


@pytest.fixture(scope="module")
def installed(source, tmp_path_factory):
    """A folder beside fedsim's own that holds the installed package."""
    target = tmp_path_factory.mktemp("installed")
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-build-isolation"]
    call = [sys.executable, "-m", "pip", "install", *quiet, "--target", str(target), str(source)]
    result = subprocess.run(call, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    return target


@pytest.fixture(scope="module")
def environment(installed):
    path = os.pathsep.join(filter(None, (str(installed), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def runs(warm, installed):
    """Each call is a process that has neither imported the plug-in nor asked Hydra for plug-ins."""
    with MortalRuns(warm, installed) as server:
        yield server


@pytest.fixture(scope="module")
def federated(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("federated") / "run"
    chosen = ["attack=[bias_rows,labels]", "defense=[random_mask]", *CHOSEN, *INLINE, *FEDERATION]
    runs.run(*chosen, f"run_dir={folder}", report=True)
    return folder


def done(folder, attack):
    results = [row for row in rows(folder, "attacks") if row["attack"] == attack]
    assert results
    assert {row["status"] for row in results} == {"done"}, results[0]["reason"]
    return results


def test_its_own_tests_pass(warm, source, environment):
    """Those that a writer of a plug-in would run: the contracts of fedsim.testing among them."""
    call = [str(warm), "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    result = subprocess.run(call, cwd=source, env=environment, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr


def test_federated_run(federated):
    assert min(image["psnr"] for row in done(federated, "bias_rows") for image in row["images"]) > 60
    certificates = [row["certificate"] for row in done(federated, "bias_rows")]
    assert all("cannot be computed once more" in one["reason"] for one in certificates), "the mask's draws are unknown"
    config = yaml.safe_load((federated / "config.yaml").read_text())
    assert config["defense"]["random_mask"]["keep"] == 0.2
    assert "bias_rows" in (federated / "report.html").read_text()


def test_a_killed_run_resumes(runs, federated, tmp_path):
    folder = tmp_path / "run"
    chosen = ["attack=[bias_rows,labels]", "defense=[random_mask]", *CHOSEN, *INLINE, *FEDERATION]
    runs.run(*chosen, f"run_dir={folder}", at="server.resume.points:ResumePoints.after_round", call=2, how="after")
    assert not (folder / "summary.json").exists()
    runs.run(f"resume={folder}")
    assert same_state(folder, federated)
    assert len(rows(folder, "attacks")) == len(rows(federated, "attacks"))


def test_observations_that_name_its_defense_and_model_are_read_by_a_process_that_has_not_loaded_them(
    runs, federated, tmp_path
):
    observation = next((federated / "observations").glob("round-*/observation.json"))
    record = json.loads(observation.read_text())
    assert record["defenses"][0]["_target_"] == "fedsim_plugin_example.defense.RandomMask"
    settings = [f"observation={federated}/observations", "attack=[labels]", "simulation=inline"]
    runs.run(*settings, f"run_dir={tmp_path}/again", command="fedsim-audit")
    assert done(tmp_path / "again", "labels")


@pytest.mark.parametrize(
    "target", ["fedsim_plugin_example.attack.BiasRows", "fedsim_plugin_example.data.Shapes", "os.system"]
)
def test_observations_find_no_other_class_of_it(runs, federated, tmp_path, target):
    copied = Path(shutil.copytree(federated / "observations", tmp_path / "observations"))
    for file in copied.glob("round-*/observation.json"):
        record = json.loads(file.read_text())
        record["defenses"][0]["_target_"] = target
        file.write_text(json.dumps(record))
    settings = [f"observation={copied}", "attack=[labels]", "simulation=inline", f"run_dir={tmp_path}/again"]
    answer = runs.run(*settings, command="fedsim-audit", code=2)
    assert f"{target}: a recorded defense must be a loaded subclass of Defense" in answer["err"]


def test_audit_and_what_its_identity_shows(runs, tmp_path):
    settings = ["attack=[bias_rows]", "audit.num_images=2", *CHOSEN, *INLINE]
    for keep, least in ((1, 110), (0.2, 60)):
        folder = tmp_path / str(keep)
        defense = ["defense=[random_mask]", f"defense.random_mask.keep={keep}"]
        runs.run(*settings, *defense, f"run_dir={folder}", command="fedsim-audit")
        assert min(image["psnr"] for row in done(folder, "bias_rows") for image in row["images"]) > least


def test_matrix(runs, tmp_path):
    small = ["num_clients=2", "num_rounds=1", "audit.num_images=2", *CHOSEN, *INLINE]
    table = ["+matrix.attacks.bias_rows=[bias_rows]", "matrix.columns=[bias_rows,labels]"]
    runs.run(*small, *table, "matrix.rows=[none,random_mask]", f"run_dir={tmp_path}/m", command="fedsim-matrix")
    found = json.loads((tmp_path / "m" / "matrix.json").read_text())["rows"]
    cells = {(row["name"], cell["attack"]): cell for row in found for cell in row["cells"]}
    assert set(cells) == {(row, column) for row in ("none", "random_mask") for column in ("bias_rows", "labels")}
    assert {cell["status"] for cell in cells.values()} == {"done"}
    assert min(cells[row, "bias_rows"]["leakage"] for row in ("none", "random_mask")) > 50


def test_measure(runs, tmp_path):
    few = ["measure.num_images=8", "measure.draws=1", "measure.repeats=1", "measure.ratios=[0,0.3]"]
    few += ["measure.attention=0", "measure.projections=[]", "device=cpu"]
    chosen = ["data=shapes", "model=vit_nano", "defense=[random_mask]", f"run_dir={tmp_path}/m"]
    runs.run(*few, *chosen, command="fedsim-measure")
    assert json.loads((tmp_path / "m" / "measures.json").read_text())["runs"]


def test_sweep(runs, tmp_path):
    quick = ["attack=[]", "num_rounds=1", "num_clients=2", "tracker=[]", *CHOSEN, *INLINE]
    runs.run("-m", "defense=[],[random_mask]", *quick, f"run_dir={tmp_path}/sweep")
    assert sorted(path.parent.name for path in (tmp_path / "sweep").glob("*/summary.json")) == ["0", "1"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_lists_its_parts(runs, command):
    out = runs.run("--help", "all", command=command)["out"]
    for group, name in PARTS.items():
        if command == "fedsim-measure" and group == "attack":
            continue
        assert any(line.startswith(f"{group}: ") and name in line for line in out.splitlines()), (group, out)


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("attack=[bias_row]", "'bias_rows'"),
        ("defense=[random_masks]", "'random_mask'"),
        ("data=shape", "'shapes'"),
        ("model.name=wide_perceptron_61", "'wide_perceptron_16'"),
        ("defense.random_mask.kep=1", "'defense.random_mask.keep'"),
    ],
)
def test_what_is_misspelt_is_corrected(runs, tmp_path, argument, hint):
    chosen = ["defense=[random_mask]"] if "kep" in argument else []
    answer = runs.run(*chosen, argument, *INLINE, f"run_dir={tmp_path}/run", code=2)
    assert f"Did you mean {hint}?" in answer["err"]


def test_ray_workers(runs, warm, tmp_path):
    workers = ["simulation.workers=1", "simulation.attack_workers=1", "num_rounds=1", "num_clients=2", "tracker=[]"]
    chosen = ["attack=[bias_rows]", "defense=[random_mask]", *CHOSEN, *workers, "observe.every=1"]
    runs.run(*chosen, f"run_dir={tmp_path}/run", workers=warm)
    assert min(image["psnr"] for row in done(tmp_path / "run", "bias_rows") for image in row["images"]) > 60
