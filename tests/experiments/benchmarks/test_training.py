"""The benchmark of training: all ways end in the same model, another end is refused, and ratios are of passes."""

import argparse
import sys
from pathlib import Path

import pytest
import torch

from experiments.benchmarks.training import command, own
from experiments.benchmarks.training.command import Seconds
from experiments.benchmarks.training.flower import clients
from experiments.benchmarks.training.work import Work, prepared, same

ARGUMENTS = argparse.Namespace(
    model="vit_nano",
    clients=3,
    batch=16,
    passes=2,
    engines=["fedsim"],
    also=[],
    pfl_python=Path(sys.executable),
    settings=["client.local_steps=2"],
)


@pytest.fixture(scope="module")
def setup():
    return prepared(ARGUMENTS)


@pytest.fixture(scope="module")
def work(setup):
    return Work.of(setup)


def test_all_ways_train_alike(setup, work):
    ends = work.bare()
    assert work.steps == 6
    assert all(not torch.equal(end[name], work.start[name]) for end in ends for name in end)
    for again in (work.bare(), own.client(setup)()):
        assert all(same(one, other) for one, other in zip(ends, again, strict=True))
    for again in (work.mean(clients(work)()), own.federation(setup)()):
        assert same(work.mean(ends), again, command.ROUNDING)


def test_the_mean_weighs_clients_by_their_images(work):
    ends = [{"w": torch.tensor([float(number)])} for number in range(3)]
    sizes = [len(labels) for labels in work.labels]
    expected = sum(number * size for number, size in enumerate(sizes)) / sum(sizes)
    assert float(work.mean(ends)["w"]) == pytest.approx(expected)


def test_pfl_research_trains_alike(setup, work):
    pytest.importorskip("pfl")
    from experiments.benchmarks.training.pfl_research import Pfl

    peer = Pfl(work, setup.config.client)
    expected = work.mean(work.bare())
    assert same(expected, work.mean(peer.ends()), command.ROUNDING)
    assert same(expected, peer.iteration(), command.ROUNDING)


def test_another_model_is_refused():
    bare = {"w": torch.ones(3)}
    off = {"w": torch.ones(3) + 2e-6}
    command.check({"bare": bare, "bare again": bare, "pfl, round": off, "fedsim, client, client.compile=true": {}})
    with pytest.raises(SystemExit, match="fedsim, client: another model"):
        command.check({"bare": bare, "fedsim, client": off})
    with pytest.raises(SystemExit, match="pfl, round: another model"):
        command.check({"bare": bare, "pfl, round": {"w": torch.ones(3) + 1e-3}})


class Engine:
    def __init__(self, calls, seconds):
        self.calls, self.seconds = calls, seconds

    def round(self, way):
        self.calls.append(way)
        return self.seconds


def test_ways_are_timed_in_turn_and_the_first_pass_is_a_warm_up(capsys):
    calls = []
    engines = {"bare": Engine(calls, (4.0, 2.0)), "round": Engine(calls, (6.0, 2.5))}
    seconds = command.in_turn(engines, 2, None)
    assert calls == ["bare", "round", "round", "bare", "bare", "round"]
    assert all(len(own.wall) == 3 for own in seconds.values())
    header, _, bare, round_ = command.table(seconds, 10)
    assert header.count("|") == bare.count("|") == round_.count("|")
    assert "| 250.00 | 1.250 | 1.250 to 1.250 | 1.500 |" in round_
    assert "pass 2 of 2" in capsys.readouterr().err


def test_ratios_are_of_passes_beside_each_other():
    bare = Seconds(cpu=[9.0, 1.0, 2.0, 4.0])
    own_ = Seconds(cpu=[1.0, 2.0, 4.0, 8.0])
    assert own_.ratios(bare, "cpu") == (2.0, 2.0, 2.0)


@pytest.mark.subprocess
def test_another_process_is_asked_for_its_rounds(warm, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(warm))
    engine = command.Engine("fedsim", ARGUMENTS, tmp_path)
    try:
        assert engine.ways[:3] == ["bare", "bare again", "fedsim, client"]
        wall, cpu = engine.round("bare")
        assert wall > 0
        assert cpu > 0
        assert (tmp_path / "bare.safetensors").exists()
    finally:
        engine.close()
    assert engine.process.returncode == 0


def test_workers_of_ray_have_the_priority_of_all_others(monkeypatch, tmp_path):
    started = {}

    def popen(*args, env, **kwargs):
        started.update(env)
        raise OSError

    monkeypatch.setattr(command.subprocess, "Popen", popen)
    with pytest.raises(OSError):  # noqa: PT011 - the stand-in's own
        command.Engine("ray", ARGUMENTS, tmp_path)
    assert started["RAY_worker_niceness"] == "0"
    assert started["TORCHINDUCTOR_COMPILE_THREADS"] == "1"


@pytest.mark.subprocess
def test_what_a_process_says_at_its_end_is_told(warm, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(warm))
    wrong = argparse.Namespace(**{**vars(ARGUMENTS), "settings": ["client.local_steps=none"]})
    with pytest.raises(SystemExit, match=r"client\.local_steps"):
        command.Engine("fedsim", wrong, tmp_path)


def test_an_interpreter_without_pfl_is_told(tmp_path):
    assert "pip install pfl" in command.PFL
    without = tmp_path / "python"
    without.write_text("#!/bin/sh\nexit 1\n")
    without.chmod(0o755)
    assert not command._has_pfl(without)
