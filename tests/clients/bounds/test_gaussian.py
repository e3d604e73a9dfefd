"""The reference between the noise that hides everything and the noise that hides nothing."""

import math
from dataclasses import replace

import pytest

from clients.bounds import GaussianReference
from fedsim.bounds.public_prior import PublicPrior
from fedsim.errors import ConfigError, NotApplicable

NARROW = "+model.kwargs.embed_dim=32"
NOISE = [
    "defense=[gradient_noise]", "defense.gradient_noise.relative_norm=null", NARROW, "defense.gradient_noise.std=0.02"
]  # fmt: skip


def test_more_noise_leaves_less_and_more_releases_more(parties):
    quiet = GaussianReference(rounds=[100])(parties(*NOISE[:3], "defense.gradient_noise.std=1e-8", images=1))
    loud = GaussianReference(rounds=[100])(parties(*NOISE[:3], "defense.gradient_noise.std=1e6", images=1))
    assert quiet.kind == "reference"
    assert quiet.values["white_each"] == pytest.approx(quiet.values["white"]), "one image is its own average"
    assert quiet.values["white"] > 60
    assert loud.values["white"] == pytest.approx(-20 * math.log10(0.3), abs=1e-3), "the prior alone"
    assert float(quiet.rows[0][3].split()[0]) == pytest.approx(quiet.values["white"] + 20, abs=0.1)
    held = parties(images=1)[0].runtime.data.auxiliary
    left = PublicPrior.of(held.images(range(len(held)))).spectrum.square().mean()
    assert loud.values["public"] == pytest.approx(-10 * math.log10(left), abs=1e-3), "what the public moments leave"
    assert "who knows more of them may pass it" in quiet.sentence


def test_the_public_moments_are_of_what_the_server_has(parties):
    (party,) = parties(*NOISE[:3], "defense.gradient_noise.std=1e6", images=1)
    few = party.runtime.data.auxiliary.subset(range(3))
    found = GaussianReference(rounds=[1])([replace(party, public=few)])
    left = PublicPrior.of(few.images(range(3))).spectrum.square().mean()
    assert found.values["public"] == pytest.approx(-10 * math.log10(left), abs=1e-3)


def test_laplace_noise_counts_by_its_information(parties):
    shared = [*NOISE[:3], "defense.gradient_noise.std=1e-6", "defense.gradient_noise.distribution=laplace"]
    laplace = GaussianReference(rounds=[])(parties(*shared, images=1))
    gaussian = GaussianReference(rounds=[])(
        parties(*NOISE[:3], f"defense.gradient_noise.std={0.5**0.5 * 1e-6}", images=1)
    )
    assert laplace.values["white"] == pytest.approx(gaussian.values["white"])


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
        GaussianReference()(parties(*settings, images=1))


def test_several_images_in_an_update_are_refused(parties):
    with pytest.raises(NotApplicable, match="2 images in an update: computed for one"):
        GaussianReference()(parties(*NOISE, images=1, batch=2))


@pytest.mark.parametrize("wrong", [{"image_std": 0}, {"rounds": [0]}, {"images": 0}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        GaussianReference(**wrong)
