"""Federations in which a part of the model is trained: what travels, and what the server makes of it."""

import json

import pytest
import torch
from safetensors.torch import load_file

from fedsim.models import Architecture, ModelSpec, architecture_seed
from fedsim.simulation import InlineGrid
from fedsim.wire.records import ARRAYS

SMALL = ("simulation=inline", "num_clients=3", "num_rounds=2", "tracker=[]", "observe.every=1", "evaluate_every=1")
FEW = ("data.test_fraction=0.05", "data.auxiliary_fraction=0.9", "client.batch_size=16", "client.optimizer.lr=0.5")
HEAD = {"head.weight", "head.bias"}
FLOAT = 4


@pytest.fixture
def exchanged(command, tmp_path, monkeypatch):
    """Runs fedsim; its folder, and names and bytes of the tensors of each message there and back."""

    def run(*settings):
        exchange, sent, back = InlineGrid.send_and_receive, [], []

        def watched(grid, messages, *, timeout=None):
            messages = list(messages)
            sent.extend(_arrays(message) for message in messages)
            replies = list(exchange(grid, messages, timeout=timeout))
            back.extend(_arrays(reply) for reply in replies if ARRAYS in reply.content)
            return replies

        monkeypatch.setattr(InlineGrid, "send_and_receive", watched)
        folder = tmp_path / "run"
        code, _, error = command("fedsim", f"run_dir={folder}", *SMALL, *FEW, *settings)
        assert (code, [line for line in error.splitlines() if not line.endswith("…")]) == (0, [])
        return folder, sent, back

    return run


def _arrays(message):
    return {name: len(array.data) for name, array in message.content[ARRAYS].items()}


@pytest.mark.parametrize("strategy", ["fedsgd", "fedavg", "fedmedian"])
def test_messages_carry_trained_tensors_alone(exchanged, strategy):
    folder, sent, back = exchanged(
        f"strategy={strategy}", "finetune=head", "attack=[labels]", "simulation.worker_sums=0"
    )
    assert len(sent) == len(back) == 6
    for one in (*sent, *back):
        assert one.keys() == HEAD
        assert (64 * 10 + 10) * FLOAT <= sum(one.values()) < (64 * 10 + 10) * FLOAT + 2 * 130  # two headers of npy
    start = Architecture(ModelSpec("vit_nano_patch2_8", 10), seed=architecture_seed(0)).build().state_dict()
    end = load_file(folder / "checkpoints" / "round-00002.safetensors")
    assert end.keys() == start.keys()
    assert {name for name, tensor in end.items() if not torch.equal(tensor, start[name])} == HEAD


def test_everything_travels_without_a_recipe(exchanged):
    _, sent, back = exchanged("attack=[]", "observe.every=0", "simulation.worker_sums=0")
    names = Architecture(ModelSpec("vit_nano_patch2_8", 10)).build().state_dict().keys()
    assert all(one.keys() == names for one in (*sent, *back))


def test_the_running_statistics_of_frozen_layers_travel(exchanged):
    model = ("model=resnet18_32", "data=digits", "num_rounds=1", "finetune=head", "attack=[]", "observe.every=0")
    _, sent, back = exchanged(*model, "strategy=fedavg", "client.local_steps=1", "simulation.worker_sums=0")
    trained = {"fc.weight", "fc.bias"}
    assert all(trained < one.keys() for one in (*sent, *back))
    assert all(name.startswith("fc.") or "running" in name or "batches" in name for name in sent[0])
    assert all(name.startswith("fc.") or "running" in name for name in back[0])


def test_what_was_observed_is_whole(exchanged):
    """The server fills in what it has sent nobody: attacks and files have the whole model."""
    folder, _, _ = exchanged("finetune=norm", "attack=[labels,patch_gradient]")
    record = json.loads((folder / "observations" / "round-00002-client-00000" / "observation.json").read_text())
    state = load_file(folder / "observations" / record["global_state"])
    assert record["finetune"] == {"_target_": "fedsim.models.finetune.parts.Norm", "head": True}
    assert len(state) == 32
    rows = [json.loads(line) for line in (folder / "attacks.jsonl").read_text().splitlines()]
    reasons = {row["attack"]: row["reason"] for row in rows}
    assert reasons == {
        "labels": "",
        "patch_gradient": "pos_embed is not trained (finetune=norm), so it has no gradient",
    }


def test_a_seed_gives_the_same_bits(exchanged, command, tmp_path):
    settings = ("strategy=fedavg", "client.local_steps=2", "finetune=lora", "attack=[]", "observe.every=0")
    folder, _, _ = exchanged(*settings)
    command("fedsim", f"run_dir={tmp_path / 'again'}", *SMALL, *FEW, *settings)
    name = "checkpoints/round-00002.safetensors"
    assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
