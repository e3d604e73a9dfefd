"""One client over several rounds: what it takes to be one, and what several rounds tell more."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import fedsim
from attacks.base import Reconstruction
from attacks.label import RecoverLabels
from attacks.optimization import GaussNewton
from attacks.optimization.second_order.attack import _named_most, _parts
from attacks.running import run_attack
from attacks.session import discard
from defenses import GradientNoise, TopK
from fedsim.bounds.public_prior import PublicPrior
from fedsim.effects import AddsErrors, TransformsImages
from fedsim.errors import ConfigError
from fedsim.models import ModelSpec

DIGITS = (torch.from_numpy(load_digits().images / 16).float()[:, None]).contiguous()
SEARCH = {"steps": 8, "starts": ["mean"], "draws": 10, "frames": 0}


@pytest.fixture(scope="module")
def rounds():
    """Six rounds of one digit behind noise, each with other weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Sigmoid(), nn.Linear(24, 10))
    found, prior = [], PublicPrior.of(DIGITS[1000:1300])
    for number in range(1, 7):
        noise = GradientNoise(relative_norm=0.1)
        seen = fedsim.observe(model, DIGITS[7:8], [7], defense=[noise], server_round=number)
        found.append(replace(seen, image_prior=prior))
        with torch.no_grad():
            for tensor in model.parameters():
                tensor += 0.1 * torch.randn(tensor.shape)
    return found


@pytest.fixture(scope="module")
def solved(rounds):
    """What the search makes of the first rounds together, however many: each number of them is searched once."""
    return cache(lambda number: fedsim.attack("gauss_newton", fedsim.History(rounds[:number]), **SEARCH))


@pytest.fixture(scope="module")
def first(rounds):
    """The first round, not as a history."""
    return fedsim.attack("gauss_newton", rounds[0], **SEARCH)


def of_images(seen, held, batch_size=2):
    """The same of a client that says it holds so many."""
    update, protocol = replace(seen.update, num_examples=held), replace(seen.protocol, batch_size=batch_size)
    return replace(seen, update=update, protocol=protocol)


def error(images):
    return float((images.double() - DIGITS[7:8].double()).square().mean())


def test_several_rounds_tell_more_than_one(rounds, first, solved):
    others = [fedsim.attack("gauss_newton", one, **SEARCH) for one in rounds[1:3]]
    alone, whole = [error(one.images) for one in (first, *others)], solved(6)
    assert whole.observation == "client-00000-rounds-00001-00006"
    assert whole.labels.tolist() == [7]
    assert error(whole.images) < 0.5 * sum(alone) / len(alone)
    assert not whole.certified


def test_many_rounds_go_on_from_the_image_of_the_first_few(solved):
    few, many = solved(2), solved(6)
    assert error(many.images) < error(few.images)
    assert [row["step"] for row in many.trace] == [float(number) for number in range(len(many.trace))]
    assert many.trace[: len(few.trace)] == few.trace  # of two rounds, then of all
    assert [_parts(number) for number in (1, 5, 6, 30, 100)] == [[1], [5], [2, 6], [2, 6, 30], [4, 20, 100]]


def test_one_round_is_the_round_itself(first, solved):
    assert torch.equal(first.images, solved(1).images)


def test_the_order_in_which_rounds_are_given_does_not_matter(rounds):
    assert [one.server_round for one in fedsim.History(rounds[::-1]).observations] == [1, 2, 3, 4, 5, 6]


def test_one_mistaken_label_is_outvoted():
    def named(*labels):
        return SimpleNamespace(labels=torch.tensor(labels))  # all that is read of a problem

    assert _named_most([named(1), named(2), named(2)]).tolist() == [2]
    assert _named_most([named(3, 1), named(1, 3), named(2, 2)]).tolist() == [3, 1]


def test_rounds_in_which_the_model_saw_other_images_are_not_solved_together(rounds):
    other = replace(rounds[0], recorded_effects=(TransformsImages(),), defenses=({"name": "flip"},) * 2)
    result = fedsim.attack("gauss_newton", fedsim.History([other, rounds[1]]), **SEARCH)
    assert result.status == "refused"
    assert "the same images in each" in result.reason
    alone = fedsim.attack("gauss_newton", fedsim.History([other]), **{**SEARCH, "steps": 1, "draws": 0})
    assert alone.status == "done"


@pytest.mark.usefixtures("few_last_steps")
def test_rounds_behind_a_regression_that_changes_no_image_are_solved_together():
    model = ModelSpec("vit_tiny_patch16_224", 10, 4, 2, kwargs={"depth": 1, "embed_dim": 12, "num_heads": 1}).build(0)
    image = DIGITS[7:8, :, 2:6, 2:6].expand(1, 3, 4, 4)
    both = [fedsim.observe(model, image, [7], defense="mjp_dal", server_round=r) for r in (1, 2)]
    assert all(seen.keeps("images") for seen in both)
    settings = {**SEARCH, "steps": 1, "draws": 0, "certify": False}
    result = fedsim.attack("gauss_newton", fedsim.History(both), **settings)
    assert result.status == "done", result.reason


def test_rounds_of_different_images_are_said_to_be(rounds, solved):
    """One came out as the mean of public images, and nothing said why."""
    other = fedsim.observe(
        rounds[1].build_model(), DIGITS[17:18], [7], defense=[GradientNoise(relative_norm=0.1)], server_round=2
    )
    mixed = fedsim.History([rounds[0], replace(other, image_prior=rounds[0].image_prior)])
    result = fedsim.attack("gauss_newton", mixed, **SEARCH)
    assert "does not explain all 2 rounds up to their errors: they may hold different images" in result.reason
    assert not solved(2).reason
    assert not solved(6).reason


@pytest.mark.parametrize("name", ["labels", "gauss_newton"])
def test_a_round_that_tells_nothing_is_left_out(rounds, name):
    silent = replace(rounds[1], update=replace(rounds[1].update, tensors={}))
    settings = {**SEARCH, "steps": 2, "draws": 0} if name == "gauss_newton" else {}
    found = fedsim.attack(name, fedsim.History([rounds[0], silent, rounds[2]]), **settings)
    others = fedsim.attack(name, fedsim.History([rounds[0], rounds[2]]), **settings)
    assert found.status == "done"
    assert torch.equal(found.labels, others.labels)
    assert found.images is None or torch.equal(found.images, others.images)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in rounds[1].update.tensors.items()}
    still = replace(rounds[1], update=replace(rounds[1].update, tensors=zeros))
    if name == "gauss_newton":
        weighed = fedsim.attack(name, fedsim.History([rounds[0], still, rounds[2]]), **settings)
        assert torch.equal(weighed.images, others.images)
    alone = replace(silent, server_round=9)
    assert "the whole update is withheld" in fedsim.attack(name, fedsim.History([silent, alone]), **settings).reason


def test_rounds_of_other_protocols_are_not_solved_together(rounds):
    steps = {"share": "delta", "local_steps": 3}
    other = fedsim.observe(rounds[0].build_model(), DIGITS[7:8], [7], server_round=2, **steps)
    result = fedsim.attack("gauss_newton", fedsim.History([rounds[0], other]), **SEARCH)
    assert result.reason == "rounds are solved together in one way: here by gradient and unroll"


def test_many_rounds_keep_a_closed_forms_image_behind_autocast():
    model, image = ModelSpec("vit_nano_patch2_8", num_classes=10).build(0), DIGITS[7:8].expand(1, 3, 8, 8).contiguous()
    seen = [fedsim.observe(model, image, [7], precision="bfloat16", server_round=number) for number in range(1, 7)]
    few, many = (fedsim.attack("gauss_newton", fedsim.History(seen[:n]), steps=3, frames=0) for n in (2, 6))
    assert torch.allclose(few.images, many.images, atol=1e-3)
    assert many.trace == ()


def test_attacks_that_read_one_round_say_so(rounds):
    result = fedsim.attack("fc_bias", fedsim.History(rounds))
    assert result.status == "refused"
    assert result.reason == "FullyConnectedBias reads one round: give it one of the history's observations"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda seen: [], "history=[]: must be one observation or more"),
        (lambda seen: [seen[0], seen[0]], "must be observations of different rounds"),
        (lambda seen: [seen[0], replace(seen[1], client=3)], "history=client [0, 3]"),
        (
            lambda seen: [seen[0], of_images(seen[1], 2)],
            "history=[1, 2] images",
        ),
        (  # as large a batch is asked for in both rounds
            lambda seen: [of_images(seen[0], 2, 8), of_images(seen[1], 1, 8)],
            "history=[1, 2] images",
        ),
    ],
)
def test_what_is_no_client_s_history_is_refused(rounds, change, words):
    with pytest.raises(ConfigError) as caught:
        fedsim.History(change(rounds))
    assert words in str(caught.value)


def test_labels_are_those_that_most_rounds_name(rounds, monkeypatch):
    named = iter([3, 7, 7, 5])
    rule = RecoverLabels("bias_sign")
    monkeypatch.setattr(rule, "run", lambda *_: Reconstruction(labels=torch.tensor([next(named)])))
    result = rule.run_history(fedsim.History(rounds[:4]), torch.Generator(), torch.device("cpu"))
    assert result.labels.tolist() == [7]
    assert result.certificate.reason == "named by 2 of 4 rounds, not certified by the first alone"


def test_rounds_with_errors_of_earlier_ones_have_no_voice_beside_others(monkeypatch):
    rule, model = RecoverLabels("bias_sign"), nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    seen = [fedsim.observe(model, DIGITS[7:8], [7], defense=[TopK(0.5)], server_round=n) for n in (1, 2, 3)]
    assert [one.effect(AddsErrors) is None for one in seen] == [True, False, False]
    named = iter([3, 7, 7, 7, 7])
    monkeypatch.setattr(rule, "run", lambda *_: Reconstruction(labels=torch.tensor([next(named)])))
    for asked, label in ((seen, 3), (seen[1:], 7)):
        result = rule.run_history(fedsim.History(asked), torch.Generator(), torch.device("cpu"))
        assert result.labels.tolist() == [label]


def test_in_a_run_a_result_of_several_rounds_is_the_last_one_s(rounds, tmp_path):
    settings = {"_target_": "attacks.optimization.GaussNewton", "steps": 3, "starts": ["mean"], "draws": 0, "frames": 0}
    device = torch.device("cpu")
    both = run_attack(rounds[1], "gauss_newton", settings, 0, device, tmp_path, earlier=rounds[:1])
    assert (both.observation, both.server_round) == (rounds[1].name, 2)
    alone = run_attack(rounds[1], "gauss_newton", settings, 0, device)
    assert not torch.equal(both.images, alone.images)
    whole = fedsim.attack("gauss_newton", fedsim.History(rounds[:2]), **{**SEARCH, "steps": 3, "draws": 0})
    assert torch.equal(both.images, whole.images)
    discard(tmp_path, [both.observation], both.attack)
    assert not list(tmp_path.iterdir())


def test_an_attack_of_single_rounds_reads_the_last_one(rounds):
    settings = {"_target_": "attacks.analytic.fc_bias.FullyConnectedBias"}
    results = [
        run_attack(rounds[1], "fc_bias", settings, 0, torch.device("cpu"), earlier=earlier)
        for earlier in ([], rounds[:1])
    ]
    assert torch.equal(results[0].images, results[1].images)


def test_of_rounds_that_it_refuses_the_last_is_attacked_alone(rounds):
    other = of_images(rounds[0], 2)
    settings = {"_target_": "attacks.optimization.GaussNewton", "steps": 3, "starts": ["mean"], "draws": 0, "frames": 0}
    result = run_attack(rounds[1], "gauss_newton", settings, 0, torch.device("cpu"), earlier=[other])
    assert result.status == "done"
    assert result.reason.startswith("of this round alone: ")
    assert "updates of the same images" in result.reason
    alone = run_attack(rounds[1], "gauss_newton", settings, 0, torch.device("cpu"))
    assert torch.equal(result.images, alone.images)


def test_what_one_round_refuses_too_is_refused_for_all_of_them(rounds):
    zero = [
        replace(one, update=replace(one.update, tensors={n: 0 * t for n, t in one.update.tensors.items()}))
        for one in rounds[:2]
    ]
    settings = {"_target_": "attacks.optimization.GaussNewton"}
    result = run_attack(zero[1], "gauss_newton", settings, 0, torch.device("cpu"), earlier=zero[:1])
    assert result.status == "refused"
    assert "of this round alone" not in result.reason


def test_a_fault_of_the_last_alone_is_its_reason(rounds, monkeypatch):
    other = of_images(rounds[0], 2)

    def broken(*_):
        raise ValueError("the fault")

    monkeypatch.setattr("attacks.optimization.GaussNewton.run", broken)
    settings = {"_target_": "attacks.optimization.GaussNewton"}
    result = run_attack(rounds[1], "gauss_newton", settings, 0, torch.device("cpu"), earlier=[other])
    assert result.status == "failed"
    assert result.reason.startswith("ValueError: the fault; of this round alone: ")


def test_of_rounds_that_it_fails_of_the_last_is_attacked_alone(rounds, monkeypatch):
    """A fault in what reads several rounds hid what one of them gives away."""

    def broken(*_):
        raise ValueError("the fault")

    monkeypatch.setattr(GaussNewton, "run_history", broken)
    settings = {"_target_": "attacks.optimization.GaussNewton", "steps": 3, "starts": ["mean"], "draws": 0, "frames": 0}
    result = run_attack(rounds[1], "gauss_newton", settings, 0, torch.device("cpu"), earlier=rounds[:1])
    assert result.status == "done"
    assert result.reason.startswith("of this round alone: ValueError: the fault")
    assert "the fault" in result.fault
