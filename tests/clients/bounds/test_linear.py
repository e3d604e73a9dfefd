"""J by finite differences, and what the reference and the local facts refuse."""

import copy
import math

import pytest
import torch
from torch.nn import functional as F

from clients.bounds import Determinedness, GaussianReference
from clients.bounds.jacobian import jacobian
from fedsim.errors import ConfigError, NotApplicable

NOISE = ["defense=[gradient_noise]", "defense.gradient_noise.relative_norm=null", "defense.gradient_noise.std=0.02"]


def by_hand(model, images, labels, names, limit=math.inf, per="update"):
    """The mean gradient of one image after the other, in float64."""
    total = dict.fromkeys(names, 0.0)
    for image, label in zip(images, labels, strict=True):
        loss = F.cross_entropy(model((image[None] - 0.5) / 0.5), label[None])
        found = dict(zip(names, torch.autograd.grad(loss, [model.get_parameter(n) for n in names]), strict=True))
        for name in names:
            over = [found[name]] if per == "layer" else list(found.values())
            most = limit / math.sqrt(len(names)) if per == "layer" else limit
            norm = math.sqrt(sum(float(one.square().sum()) for one in over))
            total[name] = total[name] + found[name] * (min(1.0, most / norm) if per != "update" else 1.0)
    mean = torch.cat([(total[name] / len(images)).flatten() for name in names])
    return mean * min(1.0, limit / float(mean.norm())) if per == "update" else mean


QUIET = ["defense=[dp_sgd]", "defense.dp_sgd.noise_multiplier=0"]
DEFENSES = {
    "nothing": (["defense=[]"], {}),
    "clip": (["defense=[gradient_clip]", "defense.gradient_clip.max_norm=0.1"], {"limit": 0.1}),
    "dp_sgd": ([*QUIET, "defense.dp_sgd.max_grad_norm=0.5"], {"limit": 0.5, "per": "example"}),
    "per_layer": ([*QUIET, "defense.dp_sgd.per_layer=true"], {"limit": 1.0, "per": "layer"}),
}


@pytest.mark.parametrize(("name", "batch"), [("nothing", 1), ("clip", 2), ("dp_sgd", 2), ("per_layer", 1)])
def test_the_columns_are_finite_differences_of_what_the_client_shares(turns, name, batch):
    defense, clip = DEFENSES[name]
    (turn,) = turns(*defense, images=1, batch=batch)
    update = turn.share(turn.train()).tensors
    found, shared = jacobian(turn, list(update))
    clients = torch.cat([tensor.flatten() for tensor in update.values()])
    assert torch.allclose(shared.float(), clients, atol=2e-5 * float(shared.abs().max()))
    turn.runtime.load(turn.state)
    model, images = copy.deepcopy(turn.runtime.model).double(), turn.images.double()
    for pixel in (0, 77, 191):
        step = torch.zeros_like(images).flatten()
        step[pixel] = 1e-5
        ends = [
            by_hand(model, images + sign * step.view(images.shape), turn.pictures.labels, list(update), **clip)
            for sign in (1, -1)
        ]
        slope = (ends[0] - ends[1]) / 2e-5
        assert float((found[:, pixel] - slope).norm()) < 1e-4 * float(slope.norm())


def test_more_noise_leaves_less_and_more_releases_more(turns):
    quiet = GaussianReference(rounds=[100])(turns(*NOISE[:2], "defense.gradient_noise.std=1e-8", images=1))
    loud = GaussianReference(rounds=[100])(turns(*NOISE[:2], "defense.gradient_noise.std=1e6", images=1))
    assert quiet.kind == "reference"
    assert quiet.values["white"] > 60
    assert loud.values["white"] == pytest.approx(-20 * math.log10(0.3), abs=1e-3), "the prior alone"
    assert float(quiet.rows[0][2].split()[0]) == pytest.approx(quiet.values["white"] + 20, abs=0.1)
    assert "who knows more of them may pass it" in quiet.sentence


def test_what_determines_a_digit(turns):
    whole = Determinedness()(turns("defense=[]", images=1))
    assert whole.kind == "local fact"
    assert (whole.values["determined"], whole.values["missing_directions"]) == (1.0, 0.0)
    assert "proves no protection" in whole.sentence
    noisy = Determinedness()(turns(*NOISE, images=1))
    assert noisy.values == whole.values, "noise is left out"
    coarse = Determinedness()(turns("defense=[half]", images=1))
    assert whole.values["rounding_psnr"] - coarse.values["rounding_psnr"] > 50, "ten bits against 23"


def test_the_head_alone_leaves_most_directions_out(turns):
    names = "[patch_embed.*,pos_embed,cls_token,blocks.*,norm.*]"
    found = Determinedness()(turns("defense=[withhold]", f"defense.withhold.patterns={names}", images=1))
    assert found.values["determined"] == 0.0
    # The width less what a LayerNorm takes away: the mean, and the size but for its epsilon.
    assert found.rows[0][1] == "63 of 192"
    assert found.values["missing_directions"] == 129.0


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["client.share=delta"], "computed for the gradient of one batch"),
        (["defense=[topk]"], "what Sparsifies does"),
        (["defense=[mixup]"], "not computed behind"),
    ],
)
@pytest.mark.parametrize("bound", [GaussianReference(), Determinedness()])
def test_what_is_not_computed_is_refused(turns, settings, reason, bound):
    with pytest.raises(NotApplicable, match=reason):
        bound(turns(*settings, images=1))


def test_too_many_pixels_are_refused(turns):
    with pytest.raises(NotApplicable, match="2,112 pixels in an update: computed for at most 2,000"):
        Determinedness()(turns(images=1, batch=11))
    with pytest.raises(NotApplicable, match="2 images in an update: computed for one"):
        GaussianReference()(turns(*NOISE, images=1, batch=2))


@pytest.mark.parametrize("make", [lambda: GaussianReference(image_std=0), lambda: Determinedness(images=0)])
def test_wrong_settings_are_refused(make):
    with pytest.raises(ConfigError):
        make()


def test_laplace_noise_counts_by_its_information(turns):
    shared = [*NOISE[:2], "defense.gradient_noise.std=1e-6", "defense.gradient_noise.distribution=laplace"]
    laplace = GaussianReference(rounds=[])(turns(*shared, images=1))
    gaussian = GaussianReference(rounds=[])(
        turns(*NOISE[:2], f"defense.gradient_noise.std={0.5**0.5 * 1e-6}", images=1)
    )
    assert laplace.values["white"] == pytest.approx(gaussian.values["white"])
