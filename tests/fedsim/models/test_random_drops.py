import timm
import torch
from timm.layers import DropPath, PatchDropout
from torch import nn

from fedsim.models.random_drops import random_drops


def test_what_draws_is_named_and_nothing_else():
    model = nn.ModuleDict(
        {
            "dropout": nn.Dropout1d(0.1),
            "path": DropPath(0.1),
            "patches": PatchDropout(0.5),
            "none": nn.Dropout(0.0),
            "whole": DropPath(0.0),
            "linear": nn.Linear(2, 2),
        }
    )
    assert random_drops(model) == ["dropout", "path", "patches"]


def test_a_model_that_it_calls_fixed_computes_the_same_twice_and_another_does_not():
    def twice(**rates):
        model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=4, **rates)
        images = torch.rand(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        return random_drops(model), torch.equal(model.train()(images), model(images))

    assert twice() == ([], True)
    for rates in ({"proj_drop_rate": 0.5}, {"attn_drop_rate": 0.5}, {"drop_path_rate": 0.5}, {"patch_drop_rate": 0.5}):
        names, same = twice(**rates)
        assert names
        assert not same
