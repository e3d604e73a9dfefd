"""A lean step of SGD: torch's bits."""

import warnings

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from fedsim.settings.local.sgd import SGD

SETTINGS = [
    {},
    {"weight_decay": 0.03},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.03},
    {"maximize": True},
    {"lr": torch.tensor(0.1)},
]


def trained(cls, groups=False, scheduled=False, **settings):
    rng = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=rng)) for shape in ((5, 7), (3,), ())]
    given = [{"params": parameters[:1]}, {"params": parameters[1:], "weight_decay": 0.0}] if groups else parameters
    optimizer = cls(given, **{"lr": 0.1, **settings})
    scheduler = StepLR(optimizer, 2, 0.5) if scheduled else None
    for step in range(5):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=rng)
        if step == 3:
            parameters[1].grad = None
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return parameters


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("groups", [False, True])
def test_steps_have_torchs_bits(settings, groups):
    theirs = trained(torch.optim.SGD, groups, **settings)
    for foreach in (None, True, False):
        ours = trained(SGD, groups, **settings, foreach=foreach)
        assert all(one.equal(other) for one, other in zip(ours, theirs, strict=True))


def test_schedulers_see_its_steps():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = trained(SGD, scheduled=True)
    assert all(one.equal(other) for one, other in zip(ours, trained(torch.optim.SGD, scheduled=True), strict=True))


def test_a_closure_is_evaluated_and_sparse_gradients_are_torchs_business():
    table = torch.nn.Embedding(4, 3, sparse=True)
    before = table.weight.detach().clone()
    optimizer = SGD(table.parameters(), lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = table(torch.tensor([1])).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == pytest.approx(float(before[1].sum()))
    optimizer.step()
    moved = table.weight.detach() - before
    assert moved[1].equal(torch.full((3,), -1.0)) or moved[1].allclose(torch.full((3,), -1.0))
    assert not moved[[0, 2, 3]].any()


def test_what_a_step_leaves_behind():
    parameters = [torch.nn.Parameter(torch.zeros(1))]
    assert SGD(parameters, lr=0.1, weight_decay=0.1).keeps_nothing
    assert not SGD(parameters, lr=0.1, momentum=0.1).keeps_nothing
