"""The benchmark of training: all ways end in the same bits, and another end is refused."""

import pytest
import torch

from experiments.benchmarks import training
from experiments.engine.setup import prepare
from experiments.python.load_config import load_config


@pytest.fixture(scope="module")
def setup():
    words = ["strategy=fedavg", "simulation=inline", "attack=[]", "audit=false", "num_clients=3"]
    return prepare(load_config("run", *words, "client.batch_size=16", "client.local_steps=2"))


def test_all_ways_train_alike(setup):
    ends = {"bare": training._bare(setup)(), "client": training._client(setup)(), "round": training._round(setup)()}
    sizes = setup.data.partition_sizes()
    training._check_bits({**ends, "bare again": ends["bare"]}, sizes)
    start = setup.model.state_dict()
    assert all(not torch.equal(end[name], start[name]) for end in ends["bare"] for name in end)
    other = [{name: tensor + 1e-6 for name, tensor in end.items()} for end in ends["client"]]
    with pytest.raises(SystemExit, match="client: other weights"):
        training._check_bits({**ends, "bare again": ends["bare"], "client": other}, sizes)
    moved = [{name: tensor + 1e-3 for name, tensor in end.items()} for end in ends["round"]]
    with pytest.raises(SystemExit, match="round: another mean"):
        training._check_bits({**ends, "bare again": ends["bare"], "round": moved}, sizes)


def test_ways_are_timed_in_turn():
    calls = []
    seconds = training._in_turn({"one": lambda: calls.append("one"), "other": lambda: calls.append("other")}, 2)
    assert calls == ["one", "other", "other", "one", "one", "other"], "the first pass is a warm-up"
    assert {name: len(passes) for name, passes in seconds.items()} == {"one": 2, "other": 2}
