"""One client over several rounds: what it takes to be one, and what several rounds tell more."""

from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits

import fedsim
from attacks.optimization.problem import Problem
from defenses import GradientNoise
from fedsim.bounds.public_prior import PublicPrior
from fedsim.errors import ConfigError
from fedsim.models import Architecture, ModelSpec

DIGITS = (torch.from_numpy(load_digits().images / 16).float()[:, None]).expand(-1, 3, -1, -1).contiguous()
SEARCH = {"steps": 12, "starts": ["closed_form"], "draws": 40, "frames": 0}


@pytest.fixture(scope="module")
def rounds():
    """Four rounds of one digit behind noise, each with other weights."""
    vit = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10), (), 0).build(keep=True)
    found, prior = [], PublicPrior.of(DIGITS[1000:1300])
    for number in range(1, 5):
        seen = fedsim.observe(
            vit, DIGITS[7:8], [7], defense=[GradientNoise(relative_norm=1e-2)], server_round=number, seed=0
        )
        found.append(replace(seen, image_prior=prior))
        with torch.no_grad():
            for name, tensor in vit.named_parameters():
                tensor -= 0.05 * seen.update.tensors[name]
    return found


def error(images):
    return float((images.double() - DIGITS[7:8].double()).square().mean())


def test_several_rounds_tell_more_than_one(rounds):
    alone = fedsim.attack("gauss_newton", rounds[0], **SEARCH)
    whole = fedsim.attack("gauss_newton", fedsim.History(rounds), **SEARCH)
    assert whole.observation == "client-00000-rounds-00001-00004"
    assert whole.labels.tolist() == [7]
    assert error(whole.images) < 0.6 * error(alone.images)
    assert not whole.certified


def test_one_round_is_the_round_itself(rounds):
    alone = fedsim.attack("gauss_newton", rounds[0], **SEARCH)
    history = fedsim.attack("gauss_newton", fedsim.History(rounds[:1]), **SEARCH)
    assert torch.equal(alone.images, history.images)


def test_the_order_in_which_rounds_are_given_does_not_matter(rounds):
    history = fedsim.History(rounds[::-1])
    assert [one.server_round for one in history.observations] == [1, 2, 3, 4]


def test_one_mistaken_label_is_outvoted(rounds):
    from attacks.optimization.second_order.attack import _named_most

    def named(*labels: int) -> Problem:
        return Problem(rounds[0], {}, torch.tensor(labels), len(labels), None, {})

    assert _named_most([named(1), named(2), named(2)]).tolist() == [2]
    assert _named_most([named(3, 1), named(1, 3), named(2, 2)]).tolist() == [3, 1]


def test_attacks_that_read_one_round_say_so(rounds):
    result = fedsim.attack("patch_gradient", fedsim.History(rounds))
    assert result.status == "refused"
    assert result.reason == "PatchGradient reads one round: give it one of the history's observations"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda seen: [], "history=[]: must be one observation or more"),
        (lambda seen: [seen[0], seen[0]], "must be observations of different rounds"),
        (lambda seen: [seen[0], replace(seen[1], client=3)], "history=client [0, 3]"),
        (
            lambda seen: [seen[0], replace(seen[1], protocol=replace(seen[1].protocol, batch_size=2))],
            "history=[1, 2] images",
        ),
    ],
)
def test_what_is_no_client_s_history_is_refused(rounds, change, words):
    with pytest.raises(ConfigError) as caught:
        fedsim.History(change(rounds))
    assert words in str(caught.value)
