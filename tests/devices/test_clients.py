"""Clients with every defense and every way to fine-tune, and the bounds on what they share, on one device."""

from pathlib import Path

import pytest
import torch

from clients.app import ClientRuntime
from clients.bounds import Party
from experiments.audit.bounds import build_bounds
from fedsim.metrics.accuracy import evaluate
from fedsim.settings.composition import build_data
from tests.support.federation import settings

CONF = Path(__file__).resolve().parents[2] / "conf"
STEPS = ["client.share=weights", "client.local_steps=2", "client.optimizer.lr=0.01"]
NOISE = ["defense=[gradient_noise]", "defense.gradient_noise.relative_norm=null", "defense.gradient_noise.std=0.02"]
BOUNDS = {
    "canaries": ["defense=[dp_sgd]", "defense.dp_sgd.noise_multiplier=4", "bound.canaries.canaries=20"],
    "gaussian_reference": NOISE,
    "pairs": NOISE,
    "reconstruction_robustness": ["defense=[dp_sgd]"],
}
"""What each is said of, where there is something to say."""


def files(group):
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def party(*overrides, batch=2):
    given = settings("audit", "data=digits", "model=vit_nano", f"audit.batch_size={batch}", *overrides)
    runtime = ClientRuntime(given, build_data(given))
    state = {name: tensor.detach().cpu().clone() for name, tensor in runtime.model.state_dict().items()}
    return given, Party(runtime, state, runtime.data.train.subset(range(batch)), 0)


def check_shared(device, *overrides):
    """Trained on the device, all that leaves the client is on the CPU, and the model evaluates."""
    _, one = party(*overrides)
    assert {tensor.device for tensor in one.runtime.model.state_dict().values()} == {torch.device(device.type, 0)}
    one.runtime.load(one.state)
    result = one.runtime.train(one.pictures, 0, 0, audit=True)
    update = one.runtime.share(result, one.state, len(one.pictures), 0, 0).update
    shared = [*update.tensors.values(), *update.buffers.values(), result.truth.images, result.truth.originals]
    assert {tensor.device.type for tensor in shared} == {"cpu"}
    assert 0 <= evaluate(one.runtime.model, one.pictures, one.runtime.normaliser).accuracy <= 1


@pytest.mark.parametrize("share", [[], STEPS], ids=["gradient", "weights"])
@pytest.mark.parametrize("defense", ["none", *files("defense")])
def test_a_client_keeps_to_its_device(device, defense, share):
    chosen = "defense=[]" if defense == "none" else f"defense=[{defense}]"
    check_shared(device, chosen, *share)


@pytest.mark.parametrize("model", ["vit_nano", "cnn_rgap"])
def test_gradients_are_those_of_a_cpu(device, monkeypatch, model):
    """Convolutions too, which a GPU may round unless it is told not to."""

    def gradient():
        _, one = party(f"model={model}")
        one.runtime.load(one.state)
        return one.runtime.train(one.pictures, 0, 0).tensors

    there = gradient()
    monkeypatch.setattr("clients.app.resolve_device", lambda _: torch.device("cpu"))
    here = gradient()
    for name, tensor in here.items():
        torch.testing.assert_close(there[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("finetune", files("finetune"))
def test_so_it_does_with_parts_that_are_trained(device, finetune):
    check_shared(device, f"finetune={finetune}", *STEPS)


SWIN = ("model.img_size=32", "+model.kwargs.window_size=4", "+model.kwargs.depths=[2,2,2,2]")


@pytest.mark.parametrize(("model", "smaller"), [("cnn_rgap", ()), ("resnet18_32", ()), ("swin_ape", SWIN)])
def test_so_it_does_with_other_models(device, model, smaller):
    check_shared(device, f"model={model}", *smaller, *STEPS)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:FutureWarning")
@pytest.mark.parametrize("name", files("bound"))
def test_a_bound_is_the_cpus(device, monkeypatch, name):
    def statement():
        given, one = party(f"bound=[{name}]", *BOUNDS.get(name, []), batch=1)
        return build_bounds(given["bound"])[name]([one])

    found = statement()
    monkeypatch.setattr("clients.app.resolve_device", lambda _: torch.device("cpu"))
    assert found.values == pytest.approx(statement().values, rel=1e-3)
