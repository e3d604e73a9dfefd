"""BatchNorm's running statistics leave the client beside its update, and what they tell."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from clients.app import ClientRuntime
from defenses import DPSGD
from defenses.base import ClientRound, DefenseChain
from fedsim.metrics.accuracy import mean_softmax
from fedsim.models import Architecture, architecture_seed, find_roles, own_architecture
from fedsim.observation import Observation
from fedsim.settings.composition import build_data, build_spec
from fedsim.storage.observation_files import load_observation, save_observation
from tests.support.buffers import buffers_after
from tests.support.federation import settings

MEAN = "bn1.running_mean"


@pytest.fixture
def runtime():
    def make(*overrides):
        model = ["data=digits", "model=resnet18_32", "model.img_size=8", "+model.kwargs.channels=[8,8,8,8]"]
        config = settings("audit", *model, "audit.batch_size=4", *overrides)
        return ClientRuntime(config, build_data(config))

    return make


def trained(client):
    """The state before, the result, and the update before defenses."""
    start = {name: tensor.detach().clone() for name, tensor in client.model.state_dict().items()}
    client.load(start)
    result = client.train(client.data.train.subset([0, 1, 2, 3]), 0, 0, audit=True)
    return start, result, result.as_update(client.settings.share, 4)


def observed(client, start, result, update):
    architecture = Architecture(client_spec(client), (), architecture_seed(client.seed))
    model = architecture.build()
    return Observation(
        server_round=0,
        client=0,
        global_state=start,
        update=update,
        protocol=result.protocol,
        architecture=architecture,
        roles=find_roles(model),
        image_shape=(3, 8, 8),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        num_classes=10,
    )


def client_spec(client):
    return build_spec(client.config.model, client.data)


@pytest.mark.parametrize("share", ["gradient", "delta"])
def test_buffers_stand_apart_from_parameters(share, runtime):
    client = runtime(f"client.share={share}")
    start, result, update = trained(client)
    parameters = {name for name, _ in client.model.named_parameters()}
    assert set(update.tensors) == parameters
    assert set(update.buffers) == {n for n in start if n.endswith(("running_mean", "running_var"))}
    after = buffers_after(update, start)
    for name, value in client.model.state_dict().items():
        if name in after:
            torch.testing.assert_close(after[name], value.double(), rtol=1e-6, atol=1e-7)
    assert not after[MEAN].equal(start[MEAN].double())
    assert set(observed(client, start, result, update).gradient) == parameters, "no buffer has a gradient"


def test_eval_mode_leaves_them_alone(runtime):
    client = runtime("client.training_mode=false")
    start, _, update = trained(client)
    assert update.buffers[MEAN].equal(start[MEAN])


def test_the_gradient_is_torchs_in_its_mode(runtime):
    for mode in ("true", "false"):
        client = runtime(f"client.training_mode={mode}", "model.dtype=float64")
        start, result, update = trained(client)
        assert result.protocol.training_mode == (mode == "true")
        client.load(start)
        model = client.model.train(mode == "true")
        model.zero_grad()
        F.cross_entropy(model(client.normaliser(result.truth.images)), result.truth.labels).backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(update.tensors[name], parameter.grad, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("share", ["gradient", "delta"])
def test_they_reveal_the_batchs_statistics(share, runtime, tmp_path):
    client = runtime(f"client.share={share}")
    start, result, update = trained(client)
    save_observation(observed(client, start, result, update), tmp_path / "o")
    seen = load_observation(tmp_path / "o")
    after = buffers_after(seen.update, seen.global_state)
    old, new = (
        [state[f"bn1.running_{name}"].double() for name in ("mean", "var")] for state in (seen.global_state, after)
    )
    mean, variance = ((b - 0.9 * a) / 0.1 for a, b in zip(old, new, strict=True))  # torch's momentum is 0.1
    client.load(start)
    read = []
    handle = client.model.bn1.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0].detach()))
    client.model.train()(client.normaliser(result.truth.images))
    handle.remove()
    torch.testing.assert_close(mean, read[0].double().mean(dim=(0, 2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(variance, read[0].double().var(dim=(0, 2, 3)), rtol=1e-4, atol=1e-5)


def test_the_mean_softmax_of_public_pictures_leaves_running_statistics_alone(runtime):
    """An audit shares this model with the worker that takes the global state from it."""
    client = runtime("data.auxiliary_fraction=0.1")
    before = {name: tensor.clone() for name, tensor in client.model.state_dict().items()}
    mean_softmax(client.model, client.data.auxiliary, client.normaliser, training_mode=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in client.model.state_dict().items())


@pytest.mark.parametrize("mode", ["private", "local", "frozen"])
@pytest.mark.parametrize("share", ["delta", "weights", "gradient"])
def test_withheld_running_statistics_are_not_sent(share, mode, runtime):
    if (share, mode) == ("gradient", "local"):
        return  # refused
    patterns = "['bn1.*','layer*.bn*','layer*.downsample.1.*']"
    client = runtime(
        f"client.share={share}",
        "defense=[withhold]",
        f"defense.withhold.patterns={patterns}",
        f"defense.withhold.mode={mode}",
    )
    start, result, update = trained(client)
    assert update.buffers
    sent = client.share(result, start, 4, 0, 0).update
    assert not sent.buffers
    assert not any(".bn" in name or name.startswith("bn1") for name in sent.tensors)
    memory = client.defenses.memory()
    if mode == "local":
        assert torch.equal(memory[f"withhold/{MEAN}"], client.model.state_dict()[MEAN])
        client.load(start)
        client.defenses.begin(ClientRound(2, 4, memory, client.model))
        assert torch.equal(client.model.state_dict()[MEAN], memory[f"withhold/{MEAN}"])
        assert not torch.equal(start[MEAN], memory[f"withhold/{MEAN}"])


class Remembering(torch.nn.Module):
    """What it has seen moves its output, and no state holds it."""

    def __init__(self, persistent=False):
        super().__init__()
        self.head = torch.nn.Linear(192, 10)
        self.register_buffer("seen", torch.zeros(192), persistent=persistent)

    def forward(self, x):
        x = x.flatten(1)
        self.seen = self.seen + x.detach().mean(0)
        return self.head(x + self.seen)


class RememberingOne(Remembering):
    """At first it has seen nothing."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", None, persistent=False)

    def forward(self, x):
        before, self.seen = self.seen, x.flatten(1).detach().mean(0)
        return self.head(x.flatten(1) if before is None else x.flatten(1) + before)


@pytest.fixture
def client_with(runtime):
    def make(module, *overrides, **defenses):
        own = own_architecture(module, (3, 8, 8))
        configured = runtime("client.local_steps=2", *overrides)
        return ClientRuntime(configured.config, configured.data, replace(own, wrappers=(DefenseChain(defenses),)))

    return make


@pytest.mark.parametrize("module", [Remembering(), Remembering(persistent=True), RememberingOne()])
def test_what_a_forward_pass_puts_in_place_of_a_buffer_passes_from_no_client_to_the_next(module, client_with):
    client = client_with(module, "client.share=delta")
    state = {name: tensor.clone() for name, tensor in client.model.state_dict().items()}

    def answer(position):
        return client.answer(client.data.train.subset([position]), state, position).update.tensors["head.weight"]

    first, other, again = answer(0), answer(1), answer(0)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("share", ["delta", "weights"])
def test_what_a_forward_pass_puts_in_place_of_a_saved_buffer_is_shared(share, client_with):
    client = client_with(Remembering(persistent=True), f"client.share={share}")
    state = {name: tensor.clone() for name, tensor in client.model.state_dict().items()}
    update = client.answer(client.data.train.subset([0]), state, 0).update
    image = client.normaliser(client.data.train.images([0])).flatten()
    torch.testing.assert_close(update.buffers["seen"], 2 * image)  # of each local step once
    client.load(state)
    assert torch.equal(client.model.seen, state["seen"])


def test_image_by_image_a_buffer_stays_as_it_was_sent(client_with):
    client = client_with(Remembering(persistent=True), "client.share=delta", dp_sgd=DPSGD(1.0, 1.0))
    state = {name: tensor.clone() for name, tensor in client.model.state_dict().items()}
    update = client.answer(client.data.train.subset([0, 1]), state, 0).update
    assert not update.buffers["seen"].any()
    assert update.tensors["head.weight"].any()
