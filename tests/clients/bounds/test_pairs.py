"""Pairs against the noiseless updates themselves, and the noise that is refused."""

import pytest
import torch
from scipy.stats import norm

from clients.bounds import IndistinguishablePairs
from clients.bounds.base import gaussian_std
from clients.bounds.pairs import rounded_up
from fedsim.bounds.two_points import blurred, pixelated
from fedsim.errors import ConfigError, NotApplicable

NOISE = ["defense=[gradient_noise]", "defense.gradient_noise.relative_norm=null", "defense.gradient_noise.std=0.02"]
PAIRS = IndistinguishablePairs(blurs=[1.0], blocks=[2, 8, 16], images=3)


def test_it_is_the_distance_of_the_noiseless_updates(parties):
    found = PAIRS(parties(*NOISE, images=2))
    plain = parties("defense=[]", images=2)
    for party, row in zip(plain, found.rows, strict=True):
        own = party.train().tensors
        other = party.train(blurred(party.images, 1.0).clamp(0, 1)).tensors
        apart = torch.cat([(own[name] - other[name]).flatten() for name in own]).double().norm()
        assert float(row[2]) == pytest.approx(norm.cdf(float(apart) / 0.02 / 2), abs=1.1e-3)
    assert found.header == ("image", "finest told apart at 90 %", "blur of 1 px", "blocks of 2 px", "blocks of 8 px")
    assert [len(strip.panels) for strip in found.strips] == [4, 4]
    assert found.strips[0].panels[1].caption.startswith("blur of 1 px: ")


def test_the_loss_that_goes_without_noise_is_outside_of_it(parties):
    """Noise hides which of two images it was; the loss, to the digits that a reply holds, does not."""
    (party,) = parties(*NOISE[:2], "defense.gradient_noise.std=1000", images=1)
    found = PAIRS([party])
    assert all(float(value) <= 0.501 for value in found.rows[0][2:])
    losses = {party.train(one).loss for one in (party.images, pixelated(party.images, 8))}
    assert len({f"{loss:.4f}" for loss in losses}) == 2
    assert found.note.startswith("Outside of it: the training loss, ")
    assert "may tell them apart" in found.note
    assert "whatever else" not in found.sentence


def test_more_noise_tells_less(parties):
    def most(std):
        found = PAIRS(parties(*NOISE[:2], f"defense.gradient_noise.std={std}", images=1))
        return max(float(value) for value in found.rows[0][2:])

    assert 0.5 <= most(10.0) <= 0.505 < most(1.0) < most(0.05)


def test_the_finest_detail_that_is_told_apart(parties):
    assert PAIRS(parties(*NOISE[:2], "defense.gradient_noise.std=1e-4", images=1)).rows[0][1] == (
        "blur of 1 px, blocks of 2 px"
    )
    assert PAIRS(parties(*NOISE[:2], "defense.gradient_noise.std=10", images=1)).rows[0][1] == "nothing"


def test_one_image_of_a_batch_changes(parties):
    one, two = PAIRS(parties(*NOISE, images=1)).rows[0], PAIRS(parties(*NOISE, images=1, batch=2)).rows
    assert len(two) == 2
    assert float(two[0][2]) < float(one[2]), "its gradient is halved by the mean"


@pytest.mark.parametrize(
    ("batch", "share", "expected"), [(1, "gradient", 2.0), (2, "gradient", 1.0), (2, "delta", 0.1)]
)
def test_the_noise_of_dp_sgd_is_on_a_batchs_sum(parties, batch, share, expected):
    dp = ["defense=[dp_sgd]", "defense.dp_sgd.noise_multiplier=2"]
    (party,) = parties(*dp, f"client.share={share}", "client.optimizer.lr=0.1", images=1, batch=batch)
    result = party.train()
    assert gaussian_std(party, result) == pytest.approx(expected)
    measured = torch.cat([t.flatten() for t in party.share(result).tensors.values()]).std()
    assert float(measured) == pytest.approx(expected, rel=0.02), "noise is nearly all of it"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["defense=[]"], "no Gaussian noise is added"),
        (["defense=[gradient_noise]"], "fix its std"),
        ([*NOISE, "defense.gradient_noise.distribution=laplace"], "laplace, not Gaussian"),
        (["defense=[gradient_noise,topk]", *NOISE[1:]], "Sparsifies stands beside the noise"),
        (["defense=[gradient_noise,gradient_clip]", *NOISE[1:], "defense.gradient_clip.max_norm=1"], "clipped: its"),
        (["defense=[dp_sgd,local_dp]"], "several defenses add noise"),
        (["defense=[dp_sgd]", "client.share=delta", "client.local_steps=2"], "each of 2 local steps"),
        (["defense=[dp_sgd]", "client.share=delta", "client.optimizer._target_=torch.optim.Adam"], "adam changes"),
        ([*NOISE, "+model.kwargs.drop_path_rate=0.1"], "drops units at random"),
    ],
)
def test_noise_that_is_not_gaussian_of_known_covariance_is_refused(parties, settings, reason):
    with pytest.raises(NotApplicable, match=reason):
        PAIRS(parties(*settings, images=1))


def test_without_a_coarser_version_there_is_nothing_to_compare(parties):
    noisy = parties(
        "defense=[gradient_noise]", "defense.gradient_noise.std=0.01", "defense.gradient_noise.relative_norm=null"
    )
    with pytest.raises(NotApplicable, match="nothing to compare with"):
        IndistinguishablePairs(blurs=[8], blocks=[])(noisy)


def test_sums_over_clients_are_refused(parties):
    with pytest.raises(NotApplicable, match="sums over clients"):
        PAIRS(parties(*NOISE, images=1, summed=True))


def test_a_clip_before_the_noise_is_part_of_what_is_shared(parties):
    clip = ["defense=[gradient_clip,gradient_noise]", *NOISE[1:], "defense.gradient_clip.max_norm=0.01"]
    assert float(PAIRS(parties(*clip, images=1)).rows[0][2]) < float(PAIRS(parties(*NOISE, images=1)).rows[0][2])


@pytest.mark.parametrize("wrong", [{"blurs": [0]}, {"blocks": [1]}, {"images": 0}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        IndistinguishablePairs(**wrong)


def test_no_probability_is_said_smaller_than_it_is():
    assert [rounded_up(value, 2) for value in (0.5, 0.5001, 0.899, 1.0)] == [0.5, 0.51, 0.9, 1.0]


def test_noise_of_steps_is_before_a_clip_of_the_update_whichever_stands_first(own_party):
    """With the clip first in the list its noise counted as Gaussian of the size that DP-SGD added."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(108, 4))
    clip, private = {"gradient_clip": {"max_norm": 0.1}}, {"dp_sgd": {"noise_multiplier": 1.0}}
    for defense in ([clip, private], [private, clip]):
        party = own_party(model, defense)
        with pytest.raises(NotApplicable, match="the noisy update is clipped"):
            gaussian_std(party, party.train())
    party = own_party(model, [private])
    assert gaussian_std(party, party.train()) == pytest.approx(1.0)
