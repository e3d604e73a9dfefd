"""Settings that attacks would misread are refused when they are read."""

import math
import re
from dataclasses import replace

import pytest
import torch

from fedsim.errors import ConfigError
from fedsim.settings.commands import config_of
from fedsim.settings.local.optimizers import check_lasts, optimizer_factory
from tests.support.federation import settings


@pytest.mark.parametrize("key", ["client", "strategy"])
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_an_optimizer_that_climbs_is_refused(key, name):
    settings = {"_target_": f"torch.optim.{name}", "lr": 0.1}
    with pytest.raises(ConfigError, match=rf"^{key}\.optimizer\.maximize=True: must be false"):
        optimizer_factory(key, {**settings, "maximize": True}, None)
    for kept in (settings, {**settings, "maximize": False}):
        made, scheduler = optimizer_factory(key, kept, None)([torch.nn.Parameter(torch.zeros(1))])
        assert isinstance(made, getattr(torch.optim, name))
        assert scheduler is None


@pytest.mark.parametrize("key", ["client", "strategy"])
@pytest.mark.parametrize(
    ("optimizer", "scheduler", "said"),
    [
        ("LBFGS", None, "one that steps from dense gradients alone, without a closure"),
        ("SparseAdam", None, "one that steps from dense gradients alone"),
        ("SGD", "ReduceLROnPlateau", "one that steps without a measure of how training goes"),
    ],
)
def test_what_takes_no_step_from_gradients_alone_is_refused(key, optimizer, scheduler, said):
    settings = {"_target_": f"torch.optim.{optimizer}", "lr": 0.1}
    plan = scheduler and {"_target_": f"torch.optim.lr_scheduler.{scheduler}"}
    refused = f"{key}.scheduler._target_=.*{scheduler}" if scheduler else f"{key}.optimizer._target_=.*{optimizer}"
    with pytest.raises(ConfigError, match=f"^{refused}: must be {said}"):
        optimizer_factory(key, settings, plan)


@pytest.mark.parametrize(
    ("target", "name", "value"),
    [("SGD", "lr", math.nan), ("SGD", "lr", math.inf), ("SGD", "dampening", -0.5), ("Adam", "weight_decay", 1e13)],
)
def test_what_no_reply_may_say_is_refused_before_any_training(target, name, value):
    settings = {"_target_": f"torch.optim.{target}", "lr": 0.1, name: value}
    with pytest.raises(ConfigError, match=rf"^client\.optimizer\.{name}=.*: must be a number from 0 to 1e\+12"):
        optimizer_factory("client", settings, None)


class Asserting(torch.optim.SGD):
    def step(self, closure=None):
        assert closure is not None


def test_an_optimizer_that_asserts_a_closure_is_refused():
    with pytest.raises(ConfigError, match=r"^client\.optimizer\._target_=.*Asserting: must be one that steps"):
        optimizer_factory("client", {"_target_": f"{__name__}.Asserting", "lr": 0.1}, None)


@pytest.mark.parametrize("share", ["gradient", "delta", "weights"])
def test_an_optimiser_that_torch_has_not_is_refused_whether_it_is_used_or_not(share):
    client = config_of(settings("audit", "client.optimizer._target_=torch.optim.Adan")).client
    with pytest.raises(ConfigError, match=r"^client\.optimizer\._target_=torch\.optim\.Adan: must be an importable"):
        replace(client, share=share).check_optimizer()


@pytest.mark.parametrize("more", [{}, {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True}, {"dampening": 0.5}])
def test_the_configured_sgd_takes_the_steps_of_torchs_to_the_bit(more):
    scheduler = {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 1, "gamma": 0.5}
    factory = optimizer_factory("client", {"_target_": "torch.optim.SGD", "lr": 0.3, **more}, scheduler)
    ends = []
    for make in (factory, factory, lambda held: (torch.optim.SGD(held, lr=0.3, foreach=False, **more), None)):
        rng = torch.Generator().manual_seed(0)
        held = [torch.nn.Parameter(torch.randn(shape, generator=rng)) for shape in ((5, 3), (7,))]
        made, stepped = make(held)
        stepped = stepped or torch.optim.lr_scheduler.StepLR(made, 1, 0.5)
        for _ in range(4):
            for one in held:
                one.grad = torch.randn(one.shape, generator=rng)
            made.step()
            stepped.step()
        ends.append(torch.cat([one.detach().flatten() for one in held]))
    assert torch.equal(ends[0], ends[2])
    assert torch.equal(ends[1], ends[2]), "nothing goes on from one client to the next"


def test_what_the_settings_hold_is_not_shared_between_clients():
    factory = optimizer_factory("client", {"_target_": "torch.optim.AdamW", "lr": 0.1, "betas": [0.8, 0.9]}, None)
    one, other = (factory([torch.nn.Parameter(torch.zeros(1))])[0] for _ in range(2))
    assert tuple(one.param_groups[0]["betas"]) == (0.8, 0.9)
    assert one.param_groups[0]["betas"] is not other.param_groups[0]["betas"]


@pytest.mark.parametrize(("optimizer", "moved"), [("SGD", "momentum"), ("Adam", "betas")])
def test_a_scheduler_that_moves_the_momentum_is_refused_on_a_client(optimizer, moved):
    optimizer = {"_target_": f"torch.optim.{optimizer}", "lr": 0.1}
    cycle = {"_target_": "torch.optim.lr_scheduler.OneCycleLR", "max_lr": 0.1, "total_steps": 5}
    with pytest.raises(
        ConfigError, match=rf"^client\.scheduler=.*OneCycleLR: must be one that leaves {moved} as it is"
    ):
        optimizer_factory("client", optimizer, cycle)
    for key, scheduler in (("strategy", cycle), ("client", {**cycle, "cycle_momentum": False})):
        optimizer_factory(key, optimizer, scheduler)


def test_a_scheduler_that_ends_too_soon_is_refused():
    sgd, name = {"_target_": "torch.optim.SGD", "lr": 0.1}, "torch.optim.lr_scheduler.OneCycleLR"
    cycle = {"_target_": name, "max_lr": 0.1, "total_steps": 50, "cycle_momentum": False}
    check_lasts("strategy", sgd, cycle, 50, "num_rounds")
    check_lasts("strategy", sgd, None, 90, "num_rounds")
    said = rf"^strategy\.scheduler={re.escape(name)}: must be one that lasts the 51 steps of num_rounds \("
    with pytest.raises(ConfigError, match=said):
        check_lasts("strategy", sgd, cycle, 51, "num_rounds")
