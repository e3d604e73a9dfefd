"""What is kept of a worker's model between clients holds for each of them."""

import torch
from torch import nn

from clients.local_model import LocalModel


def model():
    torch.manual_seed(0)
    built = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    built[2].weight.requires_grad_(False)
    return built


def test_it_names_what_is_trained_and_what_changes_besides():
    local = LocalModel(model())
    assert set(local.trained) == {"0.weight", "0.bias", "1.weight", "1.bias", "2.bias"}
    assert set(local.buffers) == {"1.running_mean", "1.running_var"}, "a count of batches has no mean"
    assert set(local.parameters) == {*local.trained, "2.weight"}


def test_changes_are_those_since_the_last_keep():
    local = LocalModel(model())
    inputs = torch.randn(5, 3)
    for _ in range(2):
        start = {name: tensor.clone() for name, tensor in local.model.state_dict().items()}
        kept = local.keep()
        assert all(torch.equal(kept[name], start[name]) for name in kept)
        optimizer = torch.optim.SGD(local.trained.values(), lr=0.5)
        optimizer.zero_grad()
        local.model(inputs).square().sum().backward()
        optimizer.step()
        end = local.model.state_dict()
        change = local.change()
        assert set(change) == {*local.trained, *local.buffers}
        assert all(torch.equal(change[name], end[name] - start[name]) for name in change)
        assert change["1.running_mean"].any(), "the forward pass moved it"


def test_the_mode_is_set_where_one_module_has_another():
    local = LocalModel(model().train())
    local.model[1].eval()
    local.set_mode(True)
    assert all(module.training for module in local.model.modules())
    local.set_mode(False)
    assert not any(module.training for module in local.model.modules())
