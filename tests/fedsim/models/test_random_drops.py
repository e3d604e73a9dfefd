import pytest
import timm
import torch
from timm.layers import DropBlock2d, DropPath, PatchDropout, PatchDropoutWithIndices
from torch import nn
from torchvision.ops import StochasticDepth

from fedsim.models.random_drops import leave_out_drops, random_drops


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


class Attends(nn.Module):
    """Hands the rate of its dropout to torch's own attention, as timm's do, and asks its own mode."""

    def __init__(self):
        super().__init__()
        self.attn_drop = nn.Dropout(0.5)

    def forward(self, x):
        rate = self.attn_drop.p if self.training else 0.0
        return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=rate)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Dropout(0.5), (2, 3, 4)),
        (nn.AlphaDropout(0.5), (2, 3, 4)),
        (DropPath(0.5), (8, 3, 4)),
        (StochasticDepth(0.5, "row"), (8, 3, 4)),
        (DropBlock2d(0.5, 3), (2, 3, 8, 8)),
        (PatchDropout(0.5), (2, 9, 4)),
        (PatchDropoutWithIndices(0.5), (2, 9, 4)),
        (nn.LSTM(4, 4, 2, dropout=0.5), (2, 3, 4)),
        (nn.TransformerEncoderLayer(4, 2, dropout=0.5), (2, 3, 4)),
        (timm.create_model("resnet10t", drop_rate=0.5, num_classes=3), (2, 3, 32, 32)),
        (Attends(), (2, 2, 9, 4)),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, nn.Module) else "",
)
def test_whatever_draws_is_known_and_can_be_left_out(module, shape):
    def drawn():
        found = module(x)
        return (found[0] if isinstance(found, tuple) else found).detach().square().sum()

    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    module.train()
    assert len({float(drawn()) for _ in range(8)}) > 1
    assert random_drops(module)
    leave_out_drops(module)
    assert not random_drops(module)
    assert len({float(drawn()) for _ in range(8)}) == 1
