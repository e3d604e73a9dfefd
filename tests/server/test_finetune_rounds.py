"""Federations in which a part of the model is trained: what travels, and what the server makes of it."""

import json

import pytest
import torch
import yaml
from safetensors.torch import load_file

from clients.app import ClientRuntime
from fedsim.models import Architecture, ModelSpec, architecture_seed
from fedsim.models.finetune import LoRA
from fedsim.observation import Observation
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
        said = [line for line in error.splitlines() if not line.endswith("…") and " counts, not " not in line]
        assert (code, said) == (0, [])
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
    small = ("model=resnet18_32", "+model.kwargs.channels=[4,4,8,8]", "+model.kwargs.layers=[1,1,1,1]")
    model = (*small, "data=digits", "num_rounds=1", "finetune=head", "attack=[]", "observe.every=0")
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


def test_factors_are_averaged_apart(exchanged, tmp_path):
    """FedIT: the mean of each factor by examples, which is not the factor of the mean product."""
    sent = ("finetune=lora", "num_rounds=1", "strategy=fedavg", "client.local_steps=2", "simulation.worker_sums=0")
    folder, _, _ = exchanged(*sent, "attack=[]", "observe.clients=all")
    seen = [Observation.load(one) for one in sorted((folder / "observations").glob("round-00001-client-*"))]
    assert len(seen) == 3
    total = sum(one.update.num_examples for one in seen)
    end = load_file(folder / "checkpoints" / "round-00001.safetensors")
    for name in seen[0].update.tensors:
        after = [one.update.tensors[name].double() for one in seen]
        mean = sum(one.update.num_examples / total * tensor for one, tensor in zip(seen, after, strict=True))
        torch.testing.assert_close(end[name].double(), mean, rtol=1e-5, atol=1e-7)
    assert float(end["blocks.0.attn.qkv.lora_B"].norm()) > 0


def test_frozen_a_is_drawn_and_never_sent(exchanged):
    folder, sent, back = exchanged(
        "finetune=lora", "finetune.aggregate=freeze_a", "strategy=fedavg", "client.local_steps=2", "attack=[]"
    )
    assert not any(name.endswith("lora_A") for one in (*sent, *back) for name in one)
    assert any(name.endswith("lora_B") for name in sent[0])
    spec, recipe = ModelSpec("vit_nano_patch2_8", 10), LoRA(aggregate="freeze_a")
    start = Architecture(spec, seed=architecture_seed(0), finetune=recipe).build().state_dict()
    end = load_file(folder / "checkpoints" / "round-00002.safetensors")
    assert all(torch.equal(end[name], tensor) for name, tensor in start.items() if name.endswith("lora_A"))


def test_a_kept_back_factor_stays_with_its_client(exchanged):
    """FedSA-LoRA by a defense: A is shared, B trained and kept."""
    kept = ("defense=[withhold]", "defense.withhold.mode=local", "defense.withhold.patterns=['*.lora_B']")
    folder, _, back = exchanged("finetune=lora", *kept, "strategy=fedavg", "client.local_steps=2", "attack=[]")
    assert not any(name.endswith("lora_B") for one in back for name in one)
    end = load_file(folder / "checkpoints" / "round-00002.safetensors")
    name = "blocks.0.attn.qkv.lora_{}"
    assert not end[name.format("B")].any()  # the global one is as it was drawn
    start = Architecture(ModelSpec("vit_nano_patch2_8", 10), seed=architecture_seed(0), finetune=LoRA()).build()
    # A moves in round 2 alone: in the first its gradient is zero but for what B gained within the client's own steps.
    assert not torch.equal(end[name.format("A")], start.state_dict()[name.format("A")])


def test_a_local_pair_stays_with_its_client_from_round_to_round(exchanged):
    """Round 2 by hand, with the client's own code: from the pair that it kept in round 1, not from a fresh one."""
    pair = ("finetune=lora", "finetune.aggregate=local_pair")
    sent = ("strategy=fedavg", "client.local_steps=2", "attack=[]", "observe.clients=all")
    folder, there, back = exchanged(*pair, *sent, "checkpoint_every=1", "simulation.worker_sums=0")
    assert not any("local_" in name for one in (*there, *back) for name in one)
    runtime = ClientRuntime(yaml.safe_load((folder / "config.yaml").read_text()))
    start = Architecture(ModelSpec("vit_nano_patch2_8", 10), seed=architecture_seed(0), finetune=LoRA()).build()
    states = [start.state_dict(), load_file(folder / "checkpoints" / "round-00001.safetensors")]
    assert not any("local_" in name for name in states[1])
    images, kept = runtime.data.client(1), None
    for number, state in enumerate(states, 1):
        (seen,) = (Observation.load(one) for one in (folder / "observations").glob(f"round-0000{number}-client-00001*"))
        assert seen.global_state.keys() == seen.build_model().state_dict().keys() == state.keys()
        updates = []
        for own in (kept, None):
            runtime.load(state, own)
            result = runtime.train(images, 1, number)
            updates.append(runtime.share(result, state, len(images), 1, number).update.tensors)
            kept = runtime.kept() if own is kept else kept
        same = [all(torch.equal(seen.update.tensors[n], one) for n, one in update.items()) for update in updates]
        assert same == [True, number == 1]


def test_workers_sum_what_is_trained(exchanged, command, tmp_path):
    """Added up where they are made: the same model up to rounding, and in both only what is trained has moved."""
    settings = ("finetune=lora", "strategy=fedavg", "client.local_steps=2", "attack=[]", "observe.every=0")
    folder, _, _ = exchanged(*settings, "simulation.worker_sums=0")
    code, _, _ = command(
        "fedsim", f"run_dir={tmp_path / 'summed'}", *SMALL, *FEW, *settings, "simulation.worker_sums=3"
    )
    assert code == 0
    name = "checkpoints/round-00002.safetensors"
    apart, summed = load_file(folder / name), load_file(tmp_path / "summed" / name)
    for key, tensor in apart.items():
        torch.testing.assert_close(summed[key], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            ("finetune=lora", "finetune.targets=[qvk]"),
            "finetune.targets=qvk: must be the last part of a linear layer's name",
        ),
        (("finetune=lora", "finetune.rnak=3"), "finetune.rnak"),
        (("finetune=lora", "defense=[mjp]"), "defense=mjp: must be a position embedding that is trained"),
        (("finetune=last_k", "finetune.k=9"), "finetune.k=9: must be at most 3"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(settings, words, command, tmp_path):
    code, _, error = command("fedsim", f"run_dir={tmp_path / 'run'}", *SMALL, *FEW, *settings)
    assert code == 2
    assert words in error.replace("\n", " ")
    assert not (tmp_path / "run").exists()
