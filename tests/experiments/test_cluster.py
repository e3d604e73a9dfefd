"""Runs on a cluster: the bits of any other run, whatever becomes of its nodes."""

import subprocess
import time

import pytest

from tests.experiments.run_files import rows, same_state
from tests.experiments.three_nodes import ENVIRONMENT, ROOT, ThreeNodes

pytestmark = [pytest.mark.ray, pytest.mark.subprocess]

SMALL = [
    "num_clients=4",
    "num_rounds=3",
    "evaluate_every=1",
    "observe.every=2",
    "attack=[patch_gradient]",
    "tracker=[]",
]
SECONDS = 240.0
"""More than any of it takes on a busy machine."""


def hangs_once(marker):
    return f"+defense.hangs={{_target_:tests.experiments.faulty_defense.HangsOnce,marker:{marker}}}"


def start(python, folder, *arguments):
    command = [str(python), "-m", "experiments.run", *SMALL, f"run_dir={folder}", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def results(folder):
    kept = ("observation", "attack", "status", "certificate", "images", "labels")
    found = [{key: row.get(key) for key in kept} for row in rows(folder, "attacks")]
    return sorted(found, key=lambda row: row["observation"])


@pytest.mark.timeout(600)
def test_a_node_lost_in_mid_round_changes_no_bit(fedsim, warm, tmp_path):
    (tmp_path / "done").touch()
    undisturbed = fedsim("simulation=inline", *SMALL, hangs_once(tmp_path / "done"))
    marker, disturbed = tmp_path / "lost", tmp_path / "disturbed"
    with ThreeNodes(warm) as cluster:
        run = start(warm, disturbed, f"ray.address={cluster.address}", hangs_once(marker))
        deadline = time.monotonic() + SECONDS
        while not marker.exists() and time.monotonic() < deadline and run.poll() is None:
            time.sleep(0.1)
        if marker.exists():
            cluster.remove(marker.read_text())
        output, _ = run.communicate(timeout=SECONDS)
    assert run.returncode == 0, output
    assert marker.exists(), "no client began round 2"
    assert (disturbed / "metrics.jsonl").read_bytes() == (undisturbed / "metrics.jsonl").read_bytes()
    assert same_state(disturbed, undisturbed)
    assert results(disturbed) == results(undisturbed)
    assert "a worker died" in (disturbed / "fedsim.log").read_text()
