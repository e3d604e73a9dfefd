"""Copies of a model are those of `copy.deepcopy`."""

import copy

import pytest
import torch
from torch import nn

from fedsim.models import ModelSpec
from fedsim.models.copies import Copies


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    return model


def unpicklable() -> nn.Module:
    model = tied()
    model.scale = lambda value: 2 * value
    return model


def vit() -> nn.Module:
    return ModelSpec("vit_tiny_patch16_224", 5, 32, 8, kwargs={"depth": 1}, variant="april").build(0)


@pytest.mark.parametrize("make", [tied, unpicklable, vit])
def test_a_copy_is_that_of_deepcopy_and_shares_nothing(make):
    model = make().train()
    copies = Copies(model)
    with torch.no_grad():
        for parameter in copies.one().parameters():  # whoever changes a copy changes no other
            parameter.zero_()
    ours, theirs = copies.one(), copy.deepcopy(model)
    assert str(ours) == str(theirs)
    assert [type(one) for one in ours.modules()] == [type(one) for one in theirs.modules()]
    assert [vars(one).keys() for one in ours.modules()] == [vars(one).keys() for one in theirs.modules()]
    mine, known = ours.state_dict(), theirs.state_dict()
    assert list(mine) == list(known)
    assert all(torch.equal(mine[name], known[name]) and mine[name].dtype == known[name].dtype for name in mine)
    named = [[(name, p.requires_grad, type(p)) for name, p in one.named_parameters()] for one in (ours, theirs, model)]
    assert named[0] == named[1] == named[2]
    held = {tensor.data_ptr() for tensor in model.state_dict().values()}
    assert not held & {tensor.data_ptr() for tensor in mine.values()}


def test_what_is_held_twice_is_copied_once():
    copied = Copies(tied()).one()
    assert copied[2].weight is copied[0].weight
