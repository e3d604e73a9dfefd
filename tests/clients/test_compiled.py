"""Compiled training is the same training: up to rounding, and with the same draws."""

from functools import partial

import pytest
import torch

from clients.app import ClientRuntime
from defenses.base import Plan
from fedsim.errors import ConfigError
from fedsim.settings.commands import config_of
from fedsim.settings.composition import build_data
from fedsim.settings.schema import plain
from tests.support.federation import settings

SHARING = ("client.share=delta", "client.local_steps=3", "audit.batch_size=4", "client.batch_size=4")


@pytest.fixture
def traced(monkeypatch):
    """Traced and differentiated as when it is compiled, without a C++ compiler; counts what is made."""
    made = []

    def backend(graph, inputs):
        made.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    torch._dynamo.reset()
    whole = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, options: whole(model, backend=backend))
    yield made
    torch._dynamo.reset()


def client_of(*overrides):
    config = settings("audit", "data=digits", "model=vit_nano", *SHARING, *overrides)
    return ClientRuntime(config, build_data(config))


def trained(client, count=4):
    state = {name: tensor.detach().clone() for name, tensor in client.model.state_dict().items()}
    result = client.train(client.data.train.subset(range(count)), 0, 0)
    client.load(state)
    return result.tensors


def test_it_changes_rounding_alone(traced):
    plainly, fast = trained(client_of()), trained(client_of("client.compile=true"))
    assert len(traced) == 1
    assert plainly.keys() == fast.keys()
    for name, tensor in plainly.items():
        torch.testing.assert_close(fast[name], tensor, rtol=1e-3, atol=1e-6)
        assert tensor.any()


def test_dropout_draws_what_the_model_draws(traced):
    dropping = ("+model.kwargs.drop_rate=0.5",)
    plainly, fast = trained(client_of(*dropping)), trained(client_of(*dropping, "client.compile=true"))
    for name, tensor in plainly.items():
        torch.testing.assert_close(fast[name], tensor, rtol=1e-3, atol=1e-6)
    kept = trained(client_of())
    assert any(not torch.allclose(kept[name], tensor, rtol=0.1) for name, tensor in plainly.items())


def test_one_code_serves_all_sizes_of_a_batch(traced):
    client = client_of("client.compile=true")
    first = trained(client, 4)
    trained(client, 3)
    trained(client, 2)
    assert len(traced) == 1
    again = trained(client, 4)
    assert all(torch.equal(first[name], again[name]) for name in first), "whatever came between"


def test_what_takes_gradients_its_own_way_is_refused():
    client = client_of("client.compile=true", "defense=[soteria]")
    refused = partial(client.defenses.check, Plan(client.model, plain(client.settings), {}, client.defenses.defenses))
    with pytest.raises(ConfigError, match=r"^client\.compile=True: must be false beside soteria"):
        refused()
    beside = client_of("client.compile=true", "defense=[topk]")
    beside.defenses.check(Plan(beside.model, plain(beside.settings), {}, beside.defenses.defenses))


def test_it_is_a_yes_or_a_no():
    with pytest.raises(ConfigError, match=r"^client\.compile=max-autotune: must be true or false"):
        config_of(settings("audit", "client.compile=max-autotune"))
