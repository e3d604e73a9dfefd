"""Rounds with BatchNorm: the global running statistics follow the clients', whatever is shared."""

import pytest
import torch
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

from fedsim.models import Architecture
from fedsim.wire.records import from_arrays
from tests.support.buffers import buffers_after

MODEL = ("model=resnet18_32", "model.img_size=8", "+model.kwargs.channels=[4,4,4,4]", "+model.kwargs.layers=[1,1,1,1]")
FEW = ("num_clients=3", "data.test_fraction=0.85", "partition=dirichlet", "client.batch_size=16")
"""Some 30 pictures a client, not as many for each: one to three local steps."""
MEAN, VAR = "bn1.running_mean", "bn1.running_var"


@pytest.mark.parametrize("share", ["gradient", "delta", "weights"])
def test_the_global_statistics_are_the_clients_mean(share, federate):
    strategy = "fedsgd" if share == "gradient" else "fedavg"
    federation = federate(*MODEL, f"strategy={strategy}", f"client.share={share}", *FEW)
    start = federation.setup.model.state_dict()[MEAN].clone()
    seen = []
    final = from_arrays(federation.start(federation.observed(seen), num_rounds=1))
    total = sum(observation.update.num_examples for observation, _ in seen)
    after = [(o.update.num_examples, buffers_after(o.update, o.global_state)[MEAN]) for o, _ in seen]
    expected = sum(count * mean for count, mean in after) / total
    torch.testing.assert_close(final[MEAN].double(), expected, rtol=1e-5, atol=1e-6)
    assert not final[MEAN].equal(start)
    assert set(final) == set(federation.setup.model.state_dict())
    for observation, _ in seen:
        assert set(observation.gradient) == {name for name, _ in federation.setup.model.named_parameters()}


@pytest.mark.parametrize("share", ["gradient", "delta", "weights"])
def test_withheld_statistics_stay_as_they_were(share, federate):
    strategy = "fedsgd" if share == "gradient" else "fedavg"
    withheld = ("defense=[withhold]", "defense.withhold.patterns=['*.running_*']")
    federation = federate(*MODEL, f"strategy={strategy}", f"client.share={share}", *FEW, *withheld)
    start = {name: tensor.clone() for name, tensor in federation.setup.model.state_dict().items()}
    seen = []
    final = from_arrays(federation.start(federation.observed(seen), num_rounds=2))
    assert all(not observation.update.buffers for observation, _ in seen)
    assert set(final) == set(start)
    assert all(final[name].equal(start[name]) for name in start if "running_" in name)
    assert not final["bn1.weight"].equal(start["bn1.weight"])


@pytest.mark.parametrize("strategy", ["fedavgm", "fedadam", "fedyogi", "fedadagrad", "qfedavg"])
def test_a_step_of_the_server_takes_no_statistics_along(strategy, federate):
    federation = federate(*MODEL, f"strategy={strategy}", *FEW)
    seen = []
    final = from_arrays(federation.start(federation.observed(seen), num_rounds=2))
    last = [observation for observation, _ in seen if observation.server_round == 2]
    total = sum(observation.update.num_examples for observation in last)
    after = [(o.update.num_examples, buffers_after(o.update, o.global_state)[MEAN]) for o in last]
    expected = sum(count * mean for count, mean in after) / total
    torch.testing.assert_close(final[MEAN].double(), expected.double(), rtol=1e-5, atol=1e-6)
    assert not final["bn1.weight"].equal(last[0].global_state["bn1.weight"])
    assert final["bn1.num_batches_tracked"].dtype == torch.int64


@pytest.mark.parametrize("strategy", ["fedadam", "fedavg"])
def test_a_wrapped_strategy_takes_no_statistics_along(strategy, federate):
    federation = federate(*MODEL, f"strategy={strategy}", *FEW)
    wrapped = DifferentialPrivacyServerSideFixedClipping(federation.strategy(), 0.0, 1e-3, 3)
    seen = []
    final = from_arrays(federation.start(federation.observed(seen, strategy=wrapped), num_rounds=1))
    total = sum(observation.update.num_examples for observation, _ in seen)
    after = [(o.update.num_examples, buffers_after(o.update, o.global_state)[VAR]) for o, _ in seen]
    expected = sum(count * variance for count, variance in after) / total
    torch.testing.assert_close(final[VAR].double(), expected.double(), rtol=1e-5, atol=1e-6)
    assert not final["bn1.weight"].equal(seen[0][0].global_state["bn1.weight"])
    assert final["bn1.num_batches_tracked"].dtype == torch.int64


class Watched(torch.nn.Identity):
    """A buffer of no layer of torch's own that training changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, tokens):
        if self.training:
            self.mean.copy_(tokens.detach().mean() + 1.0)
        return tokens


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_beside_a_servers_noise_statistics_stay_as_they_were(noise, federate, monkeypatch):
    build = Architecture.build

    def watched(*given, **named):
        model = build(*given, **named)
        model.norm_pre = Watched()
        return model

    monkeypatch.setattr(Architecture, "build", watched)
    federation = federate("data=digits", "model=vit_nano", "strategy=fedavg", *FEW)
    wrapped = DifferentialPrivacyServerSideFixedClipping(federation.strategy(), noise, 1e-3, 3)
    seen = []
    final = from_arrays(federation.start(federation.observed(seen, strategy=wrapped), num_rounds=1))
    assert all("norm_pre.mean" in observation.update.buffers for observation, _ in seen)
    assert bool(final["norm_pre.mean"] == 0.0) == (noise > 0)
    assert not final["head.weight"].equal(seen[0][0].global_state["head.weight"])
