"""The learning rate over training: against torch's schedulers, its limits, and what is refused."""

import pytest
import torch

from clients.app import ClientRuntime
from fedsim.errors import ConfigError
from fedsim.settings.commands import config_of
from fedsim.settings.composition import build_data
from fedsim.settings.local.schedule import RateSchedule
from tests.support.federation import settings


def torchs(make, steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, rates = make(optimizer), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("final", [0.0, 0.1])
@pytest.mark.parametrize(
    ("shape", "make"),
    [
        ("cosine", lambda o, end: torch.optim.lr_scheduler.CosineAnnealingLR(o, 12, eta_min=end)),
        ("linear", lambda o, end: torch.optim.lr_scheduler.LinearLR(o, 1.0, end, total_iters=12)),
    ],
)
def test_rates_over_all_rounds_are_torchs(shape, make, final):
    schedule = RateSchedule(shape=shape, final=final)
    own = [schedule.factor(step, 4, number, 3) for number in (1, 2, 3) for step in range(4)]
    assert own == pytest.approx(torchs(lambda o: make(o, final), 12))


def test_a_warm_up_rises_in_equal_steps_and_then_the_cosine_begins():
    schedule = RateSchedule(shape="cosine", warmup=0.5)
    own = [schedule.factor(step, 4, number, 2) for number in (1, 2) for step in range(4)]
    after = torchs(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 4), 4)
    assert own == pytest.approx([0.25, 0.5, 0.75, 1.0, *after])
    assert RateSchedule(shape="constant", warmup=0.5).factor(7, 4, 9, 2) == 1.0


@pytest.fixture
def train():
    def local(*overrides, server_round=1):
        config = config_of(settings("audit", "data=digits", "model=vit_nano", "client.share=delta", *overrides))
        client = ClientRuntime(config, build_data(config))
        client.load({name: tensor.detach().clone() for name, tensor in client.model.state_dict().items()})
        return client.train(client.data.train.subset([0]), 0, server_round)

    return local


def test_a_constant_rate_changes_no_bit_and_a_cosine_is_recorded(train):
    plain = train("client.local_steps=4")
    same = train("client.local_steps=4", "client.schedule.shape=linear", "client.schedule.final=1")
    assert all(torch.equal(plain.tensors[name], same.tensors[name]) for name in plain.tensors)
    falling = train("client.local_steps=4", "client.schedule.shape=cosine")
    assert falling.protocol.lrs == pytest.approx([0.1, 0.0853553, 0.05, 0.0146447], rel=1e-5)
    assert any(not torch.equal(plain.tensors[name], falling.tensors[name]) for name in plain.tensors)


def test_a_run_spans_its_rounds():
    words = ["strategy=fedavg", "num_rounds=4", "client.schedule.shape=linear", "client.local_steps=1"]
    config = config_of(settings("config", "data=digits", "model=vit_nano", *words))
    client = ClientRuntime(config, build_data(config))
    state = {name: tensor.detach().clone() for name, tensor in client.model.state_dict().items()}
    rates = []
    for number in (1, 2, 3, 4, 3):
        client.load(state)
        rates += client.train(client.data.train.subset([0]), 0, number).protocol.lrs
    assert rates == pytest.approx([0.1, 0.075, 0.05, 0.025, 0.05]), "it depends on the round alone"


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["client.share=gradient", "client.schedule.shape=cosine"], "client.schedule.shape"),
        (["client.schedule.warmup=2"], "client.schedule.warmup"),
        (["client.schedule.shape=cosin"], "client.schedule.shape"),
        (["client.schedule.final=0.1"], "client.schedule.final"),
        (["client.schedule.final=0.1", "client.schedule.warmup=0.5"], "client.schedule.final"),
        (["client.schedule.shape=cosine", "client.schedule.over=rounds"], "client.schedule.over"),
        (["client.schedule.shape=cosine", "client.scheduler={_target_:x.y}"], "client.scheduler"),
    ],
)
def test_what_cannot_be_is_refused_by_name(words, key):
    with pytest.raises(ConfigError) as refusal:
        config_of(settings("audit", "client.share=delta", *words))
    assert refusal.value.key == key
