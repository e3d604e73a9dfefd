"""What a run's own defenses prove, and everything that keeps a report from saying so."""

from dataclasses import replace

import pytest
import torch

from clients.bounds import ReconstructionRobustness
from defenses import DPSGD, LocalDP
from defenses.base import ClientRound, Defense, DefenseChain
from defenses.privacy.accounting import gaussian_delta
from fedsim.bounds.robustness import blow_up
from fedsim.bounds.two_points import distance
from fedsim.data.tensors import TensorImages
from fedsim.errors import ConfigError, NotApplicable
from fedsim.report.level import with_theorem

BOUND = ReconstructionRobustness()


def test_one_pass_of_dp_sgd(parties):
    found = BOUND(parties("defense=[dp_sgd]"))
    assert found.kind == "theorem"
    assert (found.proof.mu, found.proof.releases, found.proof.unit) == (1.0, 1, "image")
    assert found.proof.gamma == pytest.approx(blow_up(1e-3, 1.0))
    assert "with probability 0.001 before does so with at most 0.019 after this one release" in found.sentence
    assert "The probability before is an assumption about images" in found.sentence
    assert found.note.startswith("2 such releases keep it at or below 0.05, and no more. Outside of it: ")
    assert found.header[:2] == ("κ, before", "γ, after")
    assert [row[0] for row in found.rows] == ["0.01", "0.001", "1e-06"]
    assert gaussian_delta(found.values["epsilon"], 1.0) == pytest.approx(found.values["delta"])
    assert all(float(row[1]) <= float(row[2]) for row in found.rows), "ε alone says less"


def test_several_passes_add_up_whatever_the_accountant_assumes(parties):
    steps = ["client.share=delta", "client.local_steps=9"]
    found = BOUND(parties("defense=[dp_sgd]", "defense.dp_sgd.noise_multiplier=3", *steps))
    quoted = BOUND(
        parties("defense=[dp_sgd]", "defense.dp_sgd.noise_multiplier=3", "defense.dp_sgd.amplification=poisson", *steps)
    )
    assert (found.proof.mu, found.proof.releases) == (1.0, 9)
    assert quoted.proof == found.proof
    assert "after these 9 releases" in found.sentence


def test_local_dp_is_held_against_sending_nothing(parties):
    found = BOUND(parties("defense=[local_dp]"))
    defense = LocalDP()
    assert found.proof.unit == "update"
    assert found.proof.mu == pytest.approx(defense.clipping_norm / defense.std)


def test_the_strongest_of_several_counts(parties):
    both = ["defense=[dp_sgd,local_dp]", "client.share=gradient"]
    assert BOUND(parties(*both)).proof.unit == "update"


@pytest.mark.parametrize(
    ("defense", "reason"),
    [
        ("[]", "no defense is differentially private: dp_sgd and local_dp are"),
        ("[gradient_noise]", "no defense is differentially private"),
        ("[dp_sgd] defense.dp_sgd.noise_multiplier=0", "adds no noise"),
        ("[local_dp] defense.local_dp.epsilon=inf", "adds no noise"),
    ],
)
def test_what_proves_nothing_is_refused(parties, defense, reason):
    first, *more = defense.split()
    with pytest.raises(NotApplicable, match=reason):
        BOUND(parties(f"defense={first}", *more))


class Mute(Defense):
    """Says nothing of how it acts."""


def test_a_defense_that_says_nothing_of_itself_keeps_it_from_being_proven(parties):
    made = parties("defense=[dp_sgd]")
    made[0].runtime.defenses.defenses["mute"] = Mute()
    with pytest.raises(NotApplicable, match="Mute does not say how it acts"):
        BOUND(made)


class Changed(DPSGD):
    """Another mechanism under the same word."""

    def gradient(self, model, batch, compute, rng):
        return compute(batch)


class Unproven(Changed):
    """It says how it acts, and does not say what it proves."""

    def effects(self):
        return super().effects()


def test_a_defense_that_does_not_say_what_it_proves_is_not_said_to_add_no_noise(parties):
    made = parties("defense=[dp_sgd]", images=1)
    made[0].runtime.defenses.defenses["dp_sgd"] = Unproven()
    with pytest.raises(NotApplicable, match="no private defense says by its own `gaussian_dp` what it proves"):
        BOUND(made)


def test_a_chain_reports_what_it_proves_beside_what_it_measures(parties):
    (party,) = parties("defense=[dp_sgd]", "defense.dp_sgd.noise_multiplier=4", images=1)
    party.share(party.train())
    measured = party.defenses.measurements()
    assert (measured["dp_sgd_gdp_mu"], measured["dp_sgd_gdp_releases"]) == (0.25, 1.0)
    party.defenses.defenses["mute"] = Mute()
    assert "dp_sgd_gdp_mu" not in party.defenses.measurements()
    assert "dp_sgd_epsilon" in party.defenses.measurements()


def test_a_subclass_must_speak_for_itself():
    assert DefenseChain({"changed": Changed()}).gaussian_dp() is None


def test_an_image_that_is_shared_twice_counts_twice(parties):
    made = parties("defense=[dp_sgd]", "defense.dp_sgd.noise_multiplier=4")
    twice = [made[0], type(made[1])(made[1].runtime, made[1].state, made[0].pictures, 1)]
    assert (BOUND(made).proof.mu, BOUND(twice).proof.releases) == (0.25, 2)
    assert BOUND(twice).proof.mu == pytest.approx(0.25 * 2**0.5), "two releases, each with noise of its own"


def test_a_copy_under_another_name_counts_as_the_image(parties):
    made = parties("defense=[dp_sgd]", "defense.dp_sgd.noise_multiplier=4")
    held = made[0].pictures
    copies = TensorImages(held.images(range(len(held))), held.labels, tuple(f"copy of {name}" for name in held.ids))
    twice = [made[0], type(made[1])(made[1].runtime, made[1].state, copies, 1)]
    assert (BOUND(twice).proof.mu, BOUND(twice).proof.releases) == (pytest.approx(0.25 * 2**0.5), 2)


def doubled(digits, count, alone=3):
    """A client's images: one of them `count` times under as many names, beside others."""
    images = digits.train.images([0] * count + list(range(1, 1 + alone)))
    return TensorImages(images, digits.train.labels[:1].repeat(count + alone))


def test_copies_in_a_batch_add_up_as_a_simulation_shows(parties, digits):
    """What the client shares with all copies and with none: along their gradient two Gaussians μ deviations apart."""
    noisy = ["defense=[dp_sgd]", "defense.dp_sgd.noise_multiplier=8", "client.batch_size=6"]
    (made,) = parties(*noisy, images=1, batch=6)
    (clean,) = parties(*noisy, "defense.dp_sgd.noise_multiplier=0", images=1, batch=6)
    held = doubled(digits, 3)
    party, noiseless = replace(made, pictures=held), replace(clean, pictures=held)
    claimed = party.defenses
    party.share(party.train())
    mu = claimed.gaussian_dp().mu
    assert (mu, claimed.gaussian_dp().releases, claimed.gaussian_dp().copies) == (3 / 8, 1, 3)
    # One copy's clipped gradient is the sixth part of what a batch of it alone, six times, would share.
    alone = replace(noiseless, pictures=doubled(digits, 6, 0))
    gradient = alone.share(alone.train()).tensors
    apart = 3 / 6 * distance(gradient, {name: torch.zeros_like(one) for name, one in gradient.items()}, 1.0)
    mean = noiseless.share(noiseless.train()).tensors
    shared = [replace(party, client=number) for number in range(10)]
    numbers = torch.cat(
        [(tensor - mean[name]).flatten() for one in shared for name, tensor in one.share(one.train()).tensors.items()]
    )
    assert apart / float(numbers.double().std()) == pytest.approx(mu, rel=0.01)


def test_the_reported_gamma_is_what_somebody_reaches_who_knows_the_image(parties, digits):
    """A federation's client and an audit agree, and no test of the release is right more often than γ."""
    noisy = ["defense=[dp_sgd]", "defense.dp_sgd.noise_multiplier=8", "client.batch_size=32"]
    (made,) = parties(*noisy, images=1, batch=32)
    party = replace(made, pictures=doubled(digits, 16, 16))
    found = BOUND([party])
    assert (found.proof.mu, found.proof.releases) == (2.0, 1)
    assert party.defenses.measurements()["dp_sgd_gdp_mu"] == found.proof.mu
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(2, 1_000_000, generator=rng, dtype=torch.float64) * 8
    threshold = noise[0].sort().values[-10_000]
    caught = float((16 + noise[1] >= threshold).double().mean())
    assert caught == pytest.approx(found.values["gamma_0.01"], abs=0.005)
    assert found.proof.gamma > 0.05
    assert found.note.startswith("No such release keeps it at or below 0.05.")
    assert "and 16 of them are equal" in found.sentence


def test_an_update_as_a_whole_holds_all_copies(parties, digits):
    (made,) = parties("defense=[local_dp]", "client.batch_size=6", images=1, batch=6)
    held = replace(made, pictures=doubled(digits, 3))
    assert BOUND([held]).proof == BOUND([made]).proof


def test_without_the_images_nothing_is_proven_of_one():
    chain = DefenseChain({"dp_sgd": DPSGD(8.0), "local_dp": LocalDP()})
    chain.begin(ClientRound(1, 4))
    chain.defenses["dp_sgd"]._turn.memory["passes"] = torch.tensor(1)
    assert list(chain.proofs()) == ["local_dp"]


def test_the_client_that_releases_most_counts(parties, digits):
    """Two steps of four: of eight images each enters one, of three each enters both."""
    steps = ["client.share=delta", "client.local_steps=2", "client.batch_size=4"]
    (many,) = parties("defense=[dp_sgd]", *steps, images=1, batch=8)
    few = type(many)(many.runtime, many.state, digits.train.subset(range(8, 11)), 1)
    assert (BOUND([many]).proof.mu, BOUND([many]).proof.releases) == (1.0, 1)
    for together in ([many, few], [few, many]):
        assert (BOUND(together).proof.mu, BOUND(together).proof.releases) == (2**0.5, 2)


def test_buffers_that_training_changes_are_refused(parties):
    (party,) = parties("defense=[dp_sgd]", images=1)
    party.runtime.model.register_buffer("seen", torch.zeros(1))
    party.state["seen"] = torch.zeros(1)
    result = party.train()
    party.runtime.model.get_buffer("seen").fill_(1.0)
    with pytest.raises(ConfigError, match="seen would be shared without noise"):
        party.share(result)


def test_the_order_of_levels():
    assert with_theorem("broken", True, 4) == "broken"
    assert {with_theorem(level, True, 0) for level in ("open", "not tested")} == {"proven"}
    assert with_theorem("open", False, 0) == "open"
    assert with_theorem("open", True, 1) == "open", "an image that came out is at odds with the theorem"


@pytest.mark.parametrize("wrong", [{"kappas": [0.0]}, {"times": [0]}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ReconstructionRobustness(**wrong)
