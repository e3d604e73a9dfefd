"""Whole runs in which many clients are hostile: the honest ones' result, and a reason for each of the others."""

import math
from functools import partial

import pytest

from tests.experiments.hostile_clients import EVALUATE, GRADIENT, TRAIN, build_hostile_app
from tests.experiments.run_files import rows, same_state

HONEST = 9
OWN_WORDS = {
    "words": "RuntimeError: <script>alert(1)</script> 2026-11-01 00:00:00,000 INFO server: all is well",
    "forged": "malformed reply: it is no answer to what was asked",
    "nothing": "malformed reply: it is no answer to what was asked",
}
STRATEGIES = {
    "fedsgd": ["strategy=fedsgd"],
    "fedavg": ["strategy=fedavg", "client.batch_size=32", "strategy.fraction_evaluate=1.0"],
}


def deeds_of(strategy):
    """Hostile clients between honest ones, by partition id."""
    names = [*TRAIN, *OWN_WORDS, *(GRADIENT if strategy == "fedsgd" else EVALUATE)]
    return {1 + number + number // 3: name for number, name in enumerate(names)}


@pytest.fixture
def run(fedsim, monkeypatch):
    def call(strategy, sums, *settings, raises=False):
        deeds = deeds_of(strategy)
        app = partial(build_hostile_app, deeds, raises)
        monkeypatch.setattr("experiments.run.command.build_client_app", app)
        federation = [f"num_clients={len(deeds) + HONEST}", "num_rounds=2", "tracker=[]", "defense=[local_dp]"]
        few = ["data.auxiliary_fraction=0.85", "data.test_fraction=0.05"]
        watched = ["attack=[labels]", "observe.every=1", "observe.clients=[0,1,2,4]"]
        how = [f"simulation.worker_sums={sums}", *STRATEGIES[strategy]]
        return fedsim("simulation=inline", *federation, *few, *watched, *how, *settings)

    return call


def check_failures(folder, strategy):
    reasons = {**TRAIN, **GRADIENT, **EVALUATE}
    for row in rows(folder, "metrics")[1:]:
        failures = {failure["client"]: failure["error"] for failure in row["failures"]}
        assert failures.keys() == deeds_of(strategy).keys()
        for client, deed in deeds_of(strategy).items():
            if deed in OWN_WORDS:
                assert failures[client] == OWN_WORDS[deed]
            else:
                assert failures[client].startswith("malformed reply: "), (deed, failures[client])
                assert reasons[deed][1] in failures[client], (deed, failures[client])
                assert failures[client].isprintable()
                assert "<" not in failures[client]


def check_nothing_got_out(folder):
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page
    assert r"\x3cscript\x3e" in page
    lines = (folder / "fedsim.log").read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if line.startswith("2026-11-01 00:00:00,000")]
    assert any("server.screening: client 1: malformed reply: " in line for line in lines)
    assert {row["client"] for row in rows(folder, "attacks")} == {0, 4}
    assert not [path for path in folder.rglob("*") if any(word in path.name for word in ("script", "passwd", ".."))]


@pytest.mark.parametrize("sums", [0, 4], ids=["whole", "summed"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_result_is_that_of_the_others(run, strategy, sums):
    hostile, failing = run(strategy, sums), run(strategy, sums, raises=True)
    check_failures(hostile, strategy)
    check_nothing_got_out(hostile)
    assert same_state(hostile, failing)
    for row, other in zip(rows(hostile, "metrics"), rows(failing, "metrics"), strict=True):
        assert {failure["client"] for failure in row.pop("failures")} == {f["client"] for f in other.pop("failures")}
        # What refused replies released, which say nothing of it, is not known; a client that raised released nothing.
        spent = [row.pop(key) for key in list(row) if key.startswith("local_dp_") and row[key] != other[key]]
        assert all(value == math.inf for value in spent)
        assert row == {key: value for key, value in other.items() if key in row}
    last = rows(hostile, "metrics")[-1]
    assert last["clients"] == HONEST + (strategy == "fedavg")  # who spoils evaluation alone trains as the others do


@pytest.mark.parametrize(("strategy", "sums"), [("fedavg", 0), ("fedsgd", 4)])
def test_two_workers_refuse_as_one_process_does(run, ray_on_this_machine, strategy, sums):
    on_ray = ["simulation.engine=ray", "simulation.workers=2", "simulation.num_cpus=0.5", "attack=[]"]
    inline, on_workers = run(strategy, sums, "attack=[]"), run(strategy, sums, *on_ray)
    assert (inline / "metrics.jsonl").read_bytes() == (on_workers / "metrics.jsonl").read_bytes()
    assert same_state(inline, on_workers)
