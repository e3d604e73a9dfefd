"""GradInversion's reproduction: labels are those of the attacks themselves, arms differ in what they say."""

import csv
import json
from dataclasses import replace

import pytest
import torch

from attacks.running import run_attack
from experiments.benchmarks.label_rules import RULES, batch_of
from experiments.studies.gradinversion import study as gradinversion
from experiments.studies.gradinversion.labels import known_features
from experiments.studies.gradinversion.page import ARMS, LAZY, REGISTERED, RULES_SHOWN, page
from experiments.studies.gradinversion.study import (
    SCALES,
    GradInversionScale,
    configuration,
    of_arm,
    plan,
    read_labels,
    train,
)
from experiments.studies.harness import victims
from experiments.studies.harness.client import Client
from experiments.studies.harness.victims import draw_batch
from experiments.studies.harness.weights import class_count
from fedsim.determinism import torch_generator
from fedsim.errors import RunError
from fedsim.metrics.results import score_against
from fedsim.result import AttackResult

TINY = GradInversionScale(
    model=("model=resnet18_32", "+model.kwargs.channels=[4,4,8,8]", "+model.kwargs.layers=[1,1,1,1]"),
    training=2,
    states=("initial", "trained"),
    sizes=(1, 2, 4, 8),
    batches=2,
    pictures=24,
    seeds=1,
    batch=2,
    search={"steps": 2, "restarts": 2},
    warmup=0,
    group_every=1,
)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(SCALES, "small", TINY)


def options(six_classes, tmp_path, *arguments):
    fixed = ["--pictures", str(six_classes), "--out", str(tmp_path)]
    return gradinversion.arguments().parse_args([*fixed, *arguments])


@pytest.fixture
def units(six_classes, tmp_path):
    """The training, which has run, and the others."""
    (training,), rest = plan(options(six_classes, tmp_path), TINY, [0, 1])
    train(training)
    return training, {unit.key: unit for unit in rest}


def test_units_are_named_by_what_differs(six_classes, tmp_path):
    training, rest = plan(options(six_classes, tmp_path), TINY, [3, 4])
    assert [unit.key for unit in training] == ["training"]
    keys = [unit.key for unit in rest]
    assert len(keys) == len(set(keys)) == 2 * (len(ARMS) + 4)
    assert "labels/trained/repeated/seed 4" in keys
    given, _ = plan(options(six_classes, tmp_path, "--checkpoint", "x.safetensors"), TINY, [0])
    assert given == []


def test_the_whole_study(tiny, study, refuse_work, tmp_path):
    code, printed, err = study(gradinversion)
    assert code == 0, err
    text = (tmp_path / "out" / "gradinversion.md").read_text()
    assert text in printed
    assert "| GradInversion, column minimum |" in text
    assert "| 99.56 |" in text
    assert "paper: LPIPS" in text
    assert "What differs, and why:" in text
    assert (tmp_path / "out" / "gradinversion.png").stat().st_size > 10_000
    with (tmp_path / "out" / "ablation.csv").open() as file:
        lines = {line["arm"]: line for line in csv.DictReader(file)}
    assert set(lines) == set(ARMS)
    assert all(line["status"] == "done" for line in lines.values())
    assert len({lines[arm]["psnr"] for arm in ARMS[:3]}) == 3
    with (tmp_path / "out" / "labels-trained-repeated.csv").open() as file:
        repeated = list(csv.DictReader(file))
    assert {line["rule"] for line in repeated} <= set(RULES_SHOWN) <= set(RULES)
    # No class twice, in batches whose labels occur at least twice.
    minimum = [float(line["share"]) for line in repeated if line["rule"] == "gradinversion"]
    assert 0 < max(minimum) <= 0.5
    results = (tmp_path / "out" / "results.jsonl").read_text()
    refuse_work(gradinversion)
    assert study(gradinversion)[0] == 0
    assert (tmp_path / "out" / "results.jsonl").read_text() == results


def test_more_seeds_may_be_asked_for_later_and_other_scales_want_another_folder(
    tiny, study, unshown, monkeypatch, tmp_path
):
    unshown(gradinversion)
    assert study(gradinversion, "--seeds", "1")[0] == 0
    assert study(gradinversion, "--seeds", "2")[0] == 0
    done = [json.loads(line)["unit"] for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert len(done) == len(set(done)) == 1 + 2 * (len(ARMS) + 4)
    monkeypatch.setitem(SCALES, "small", replace(TINY, batch=4))
    code, _, err = study(gradinversion)
    assert code == 2
    assert "other settings" in err


def test_other_weights_by_the_same_name_want_another_folder(tiny, study, unshown, monkeypatch, tmp_path):
    unshown(gradinversion)
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(b"one")
    assert study(gradinversion, "--checkpoint", str(weights))[0] == 0
    moved = weights.rename(tmp_path / "moved.safetensors")
    assert study(gradinversion, "--checkpoint", str(moved))[0] == 0
    weights.write_bytes(b"two")
    code, _, err = study(gradinversion, "--checkpoint", str(weights))
    assert code == 2
    assert "other settings: checkpoint=" in err


def test_training_does_not_read_what_an_interrupted_one_left(six_classes, tmp_path):
    (training,), _ = plan(options(six_classes, tmp_path), TINY, [0])
    training.settings["checkpoint"].write_bytes(b"half")
    (entry,) = train(training)
    assert entry["steps"] == TINY.training
    assert class_count(training.settings["checkpoint"], "fc.bias") == 6


def test_an_attack_that_fails_is_tried_again(units, monkeypatch):
    _, rest = units
    unit = rest[f"ablation/{REGISTERED}/seed 1"]
    monkeypatch.setattr(victims, "run_attack", lambda *_: AttackResult("o", "a", "failed", "OutOfMemoryError: full"))
    with pytest.raises(RunError, match="OutOfMemoryError: full; the same command tries it again"):
        gradinversion.work(unit)


def test_seeds_that_an_arm_did_not_serve_are_counted(tmp_path):
    done = {"kind": "ablation", "arm": LAZY, "status": "done", "reason": "", "psnr": 12.0}
    refused = {"kind": "ablation", "arm": LAZY, "status": "refused", "reason": "labels"}
    text = page([{**done, "seed": 0}, {**done, "seed": 1}, {**refused, "seed": 2}], 2, tmp_path, "").tables[-1].rows
    assert text[ARMS.index(LAZY)][1] == "12.00 ± 0.00 (2 of 3)"


def test_paper_scale_wants_weights(study):
    code, _, err = study(gradinversion, "--scale", "paper")
    assert code == 2
    assert "--checkpoint" in err


def test_closed_form_gradients_and_rules_are_those_of_clients_and_attacks(units):
    training, _ = units
    config = configuration(training)
    config["client"]["batch_size"] = 3
    client = Client(config, training.settings["checkpoint"])
    known = known_features(client.setup, 24, 0, "cpu")
    positions = draw_batch(known.labels, [2, 1], torch.Generator().manual_seed(1))
    batch = batch_of(known, torch.tensor(positions))
    order = torch.randperm(len(client.setup.data.train), generator=torch_generator(0, "label batches", "clients"))
    observation, _, _ = client.shares([int(order[position]) for position in positions], 0)
    torch.testing.assert_close(batch.weight_grad, observation.gradient["fc.weight"].float(), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(batch.bias_grad, observation.gradient["fc.bias"].float(), atol=1e-6, rtol=1e-4)
    attack = {"_target_": "attacks.label.RecoverLabels", "rule": "gradinversion"}
    outcome = run_attack(observation, "labels", attack, 0, torch.device("cpu"))
    found = RULES["gradinversion"](batch, torch.Generator())
    assert outcome.labels.tolist() == found.tolist()


def test_an_arm_is_the_attack_called_directly(units):
    training, rest = units
    unit = rest[f"ablation/{REGISTERED}/seed 1"]
    (entry,) = gradinversion.work(unit)
    config = configuration(unit)
    client = Client(config, training.settings["checkpoint"])
    labels = client.setup.data.train.labels
    positions = draw_batch(labels, [1, 1], torch_generator(1, "gradinversion-batch"))
    observation, truth, _ = client.shares(positions, 1)
    settings = config["attack"]["gradinversion"]
    assert settings["group"]["register"]
    outcome = run_attack(observation, "gradinversion", settings, 1, torch.device("cpu"))
    found = score_against(outcome, truth).scores
    assert entry["psnrs"] == [one.psnr for one in found.images]
    assert entry["labels"] == found.labels.share
    assert of_arm(LAZY, settings)["group"]["register"] is False


def test_labels_of_a_seed_are_the_same_again(units):
    _, rest = units
    unit = rest["labels/initial/distinct/seed 1"]
    first, again = (
        [{key: value for key, value in entry.items() if key != "seconds"} for entry in read_labels(unit)]
        for _ in range(2)
    )
    assert first == again
    assert {entry["batch_size"] for entry in first} == {1, 2, 4}
