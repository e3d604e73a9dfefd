"""A SuperLink and two SuperNodes as processes on the loopback: two rounds, attacks, and nothing left behind."""

import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import tomli_w

import fedsim as product
from tests.experiments.flower.processes import flower_processes
from tests.experiments.run_files import rows, same_state

ROOT = Path(__file__).parents[3]
SETTINGS = [
    "num_clients=2",
    "num_rounds=2",
    "evaluate_every=2",
    "observe.every=1",
    "attack=[patch_gradient]",
    "tracker=[]",
    "simulation.worker_sums=0",
]

pytestmark = [
    pytest.mark.subprocess,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]


def app_folder(folder):
    """A folder with this project's tables for Flower, its licence, and files that are nobody else's business."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]
    (folder / "results").mkdir(parents=True)
    (folder / "results" / "attacks.jsonl").write_text("{}")
    (folder / "own_code.py").write_text("")
    shutil.copy(ROOT / "LICENSE", folder)
    project = {"name": "fedsim", "version": product.__version__, "description": "", "license": "Apache-2.0"}
    (folder / "pyproject.toml").write_text(tomli_w.dumps({"project": project, "tool": {"flwr": tables}}))
    return folder


@pytest.mark.timeout(1200)
def test_superlink_and_supernodes_train_attack_and_stop(tmp_path, fedsim, warm):
    """About a minute of CPU, most of it for importing torch: a SuperNode starts a process for each message."""
    app, deployed = app_folder(tmp_path / "app"), tmp_path / "deployed"

    def run(*overrides):
        words = " ".join([*SETTINGS, f"run_dir={deployed}", *overrides])
        return flower.flwr("run", str(app), "--stream", "--run-config", f'overrides="{words}"')

    with flower_processes(tmp_path / "home", warm.parent) as flower:
        superlink = flower.start_superlink()
        flower.start_supernode(superlink, "partition-id=1 num-partitions=2 overrides='audit=true'")
        flower.start_supernode(superlink, "partition-id=0 num-partitions=2")
        bad, good = run("num_rouns=2"), run()
        status = flower.runs()
        log = flower.log()
        left = flower.ask_to_stop()

    line = "num_rouns=2: there is no such key. Did you mean 'num_rounds'?"
    assert line in status["finished:failed"]["status-details"]
    assert bad.returncode == 0, "Flower has learnt to tell a failed run by its exit code: the manual says it has not"
    assert "finished:completed" in status, good.stdout + log
    assert left == []
    (sent,) = (tmp_path / "home" / "apps").iterdir()
    assert {path.name for path in sent.rglob("*")} == {"pyproject.toml", "LICENSE"}

    simulated = fedsim("simulation=inline", *SETTINGS)
    assert (deployed / "metrics.jsonl").read_bytes() == (simulated / "metrics.jsonl").read_bytes()
    assert same_state(deployed, simulated)
    assert (deployed / "report.html").exists()
    attacks = {row["observation"]: row for row in rows(deployed, "attacks")}
    assert len(attacks) == 4
    assert all(row["certificate"]["status"] == "certified" for row in attacks.values())
    for server_round in ("round-00001", "round-00002"):
        hidden, shown = (attacks[f"{server_round}-client-{client:05d}"]["images"][0] for client in (0, 1))
        assert shown["psnr"] > 80
        assert hidden["psnr"] is None
        assert hidden["original"] is None
        for picture in (hidden["reconstruction"], shown["reconstruction"], shown["original"]):
            assert (deployed / picture).read_bytes() == (simulated / picture).read_bytes()
