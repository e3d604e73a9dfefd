"""Runs of a sweep side by side; what each computes is tested elsewhere."""

import json
import subprocess
import sys

import pytest
import ray
from omegaconf import OmegaConf

from experiments.cli.launcher import SideBySide
from tests.experiments.run_files import rows
from tests.support.preloaded_workers import OTHERS

SWEEP = ["-m", "hydra/launcher=side_by_side", "num_clients=2", "num_rounds=1", "attack=[]", "tracker=[]"]


@pytest.fixture(autouse=True)
def no_count_of_other_tests(monkeypatch):
    monkeypatch.setattr(SideBySide, "failed", 0)


@pytest.mark.timeout(600)
def test_runs_share_one_ray_and_one_that_fails_is_alone_in_it(
    command, ray_on_this_machine, warm, monkeypatch, tmp_path
):
    monkeypatch.setattr(sys, "executable", str(warm))
    (ray_on_this_machine / OTHERS).symlink_to(warm)
    # seed=x is refused by the run that has it. The others find the Ray of this process.
    address = ray.get_runtime_context().gcs_address
    code, out, err = command(
        "fedsim", *SWEEP, "seed=0,1,x", "simulation.workers=1", f"ray.address={address}", f"run_dir={tmp_path}/sweep"
    )
    assert code == 2, err
    assert "#2 failed with code 2" in out
    assert "error: seed=x" in out
    finished = [json.loads((tmp_path / "sweep" / f"{n}" / "summary.json").read_text())["finished"] for n in (0, 1)]
    assert finished == [True, True]
    first, second = (rows(tmp_path / "sweep" / name, "metrics") for name in ("0", "1"))
    assert first[-1]["round"] == 1
    assert first != second
    assert (tmp_path / "sweep" / "index.html").exists() or list((tmp_path / "sweep").glob("*.html"))


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["seed=0,1"], "simulation.workers=auto"),
        (["simulation.workers=1,auto"], "simulation.workers=auto"),
        (["seed=0,1", "simulation.workers=1", "hydra.launcher.at_once=0"], "hydra.launcher.at_once=0"),
        (["seed=0,1", "simulation.workers=1", "ray.address=nowhere"], "ray.address=nowhere"),
    ],
)
def test_what_cannot_run_side_by_side_is_refused_at_once(command, tmp_path, arguments, key):
    code, _, err = command("fedsim", *SWEEP, *arguments, f"run_dir={tmp_path}/sweep")
    assert code == 2
    assert key in err
    assert not list((tmp_path / "sweep").glob("[0-9]"))


def test_only_commands_that_it_knows(command, tmp_path):
    code, _, err = command("fedsim-measure", "-m", "hydra/launcher=side_by_side", "seed=0,1", f"run_dir={tmp_path}/x")
    assert code == 2
    assert "only fedsim and fedsim-audit" in err


class Unstarted(subprocess.Popen):
    def __init__(self, args, **settings):
        self.args = args


@pytest.mark.parametrize(("own", "grows"), [(None, ["ray.grows=false"]), ("10.0.0.1:6379", [])])
def test_to_a_ray_of_the_sweeps_own_no_node_comes(monkeypatch, tmp_path, own, grows):
    monkeypatch.setattr(subprocess, "Popen", Unstarted)
    sweep = SideBySide()
    typed = ["hydra/launcher=side_by_side", "hydra.launcher.at_once=3", "hydra.mode=MULTIRUN", "hydra.sweep.dir=x"]
    kept = ["hydra.searchpath=[file:///own]", "+hydra.verbose=true"]
    sources = {
        "runtime": {"config_sources": []},
        "job": {"config_name": "config"},
        "overrides": {"hydra": typed + kept},
    }
    sweep.config = OmegaConf.create({"hydra": sources, "ray": {"address": own}})
    run = sweep._start(0, tmp_path, ["seed=0"], "10.0.0.1:6379")
    run.output.close()
    assert [word for word in run.process.args if "hydra" in word] == kept
    assert run.process.args[-1 - len(grows) :] == ["ray.address='10.0.0.1:6379'", *grows]
