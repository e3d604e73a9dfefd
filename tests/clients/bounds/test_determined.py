"""What is determined of digits, and what is not computed."""

import re

import pytest
import torch
from torch import nn

from clients.bounds import Determinedness
from fedsim.errors import ConfigError, NotApplicable
from tests.support.attention import Attention

NOISE = ["defense=[gradient_noise]", "defense.gradient_noise.relative_norm=null", "defense.gradient_noise.std=0.02"]


def test_what_determines_a_digit(parties):
    narrow = "+model.kwargs.embed_dim=32"
    whole = Determinedness()(parties(narrow, "defense=[]", images=1))
    assert whole.kind == "local fact"
    assert (whole.values["determined"], whole.values["missing_directions"]) == (1.0, 0.0)
    assert "proves no protection" in whole.sentence
    noisy = Determinedness()(parties(narrow, *NOISE, images=1))
    assert noisy.values == whole.values, "noise is left out"
    loose = "defense.dp_sgd.max_grad_norm=1000"
    private = Determinedness()(parties(narrow, "defense=[dp_sgd]", loose, images=1))
    assert private.values == pytest.approx(whole.values, rel=0.01), "noise in the steps too"
    coarse = Determinedness()(parties(narrow, "defense=[half]", images=1))
    assert whole.values["rounding_psnr"] - coarse.values["rounding_psnr"] > 50, "ten bits against 23"


def test_the_head_alone_leaves_most_directions_out(parties):
    names = "[patch_embed.*,pos_embed,cls_token,blocks.*,norm.*]"
    found = Determinedness()(parties("defense=[withhold]", f"defense.withhold.patterns={names}", images=1))
    assert found.values["determined"] == 0.0
    # The width less what a LayerNorm takes away: the mean, and the size but for its epsilon.
    assert found.rows[0][1] == "63 of 192"
    assert found.values["missing_directions"] == 129.0


class Tokens(nn.Module):
    """Nine patches of 12 numbers, each read by 8."""

    def __init__(self):
        super().__init__()
        self.embed, self.first, self.second, self.head = nn.Linear(12, 8), Attention(8), Attention(8), nn.Linear(8, 5)

    def forward(self, images):
        tokens = self.embed(nn.functional.unfold(images, 2, stride=2).mT)
        return self.head(self.second(self.first(tokens)).mean(1))


@pytest.mark.parametrize(
    ("shared", "rank"),
    [
        # Of a patch 4 directions are not read: of their 36 numbers the first layer's gradient tells 8 sums each.
        (".", 72 + 4 * 8),
        ("k.bias", 0),  # rounding alone
        ("head.bias", 4),  # errors of five classes, whose sum is zero
        ("k.bias|head.bias", 4),
    ],
)
def test_a_tensor_that_is_rounding_alone_shares_no_direction(own_party, shared, rank):
    torch.manual_seed(0)
    model = Tokens()
    withheld = [name for name, _ in model.named_parameters() if not re.search(shared, name)]
    found = Determinedness()([own_party(model, {"withhold": {"patterns": withheld}} if withheld else ())])
    assert found.rows[0][1] == f"{rank} of 108"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["client.share=delta"], "computed for the gradient of one batch"),
        (["defense=[topk]"], "what Sparsifies does"),
        (["defense=[mixup]"], "not computed behind"),
    ],
)
def test_what_is_not_computed_is_refused(parties, settings, reason):
    with pytest.raises(NotApplicable, match=reason):
        Determinedness()(parties(*settings, images=1))


def test_too_many_pixels_are_refused(parties):
    with pytest.raises(NotApplicable, match="2,112 unknowns in an update: computed for at most 2,000"):
        Determinedness()(parties(images=1, batch=11))


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match="images=0"):
        Determinedness(images=0)
