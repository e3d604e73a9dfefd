"""The prior-knowledge experiment: numbers are the attacks' own, certificates count what they certify."""

import csv
from dataclasses import replace

import pytest
import torch

from attacks.base import Certificate
from attacks.running import run_attack
from experiments.studies.harness.client import Client
from experiments.studies.harness.victims import audit, draw_batch
from experiments.studies.prior_knowledge import study as prior_knowledge
from experiments.studies.prior_knowledge.page import (
    CERTIFYING,
    CLOSED,
    COSINE,
    FEATURES,
    FIRST_BLOCK,
    LABELS,
    MATCHING,
    RANDOM,
    RGAP,
    ROW_SPACE,
    SHARING,
    SQUARED,
    page,
    wrong,
)
from experiments.studies.prior_knowledge.study import SCALES, KnowledgeScale, evenly, of_method, plan
from fedsim.determinism import torch_generator
from fedsim.metrics.accuracy import mean_softmax
from fedsim.metrics.results import score_against
from fedsim.result import AttackResult

VIT = ("model=vit_tiny", "model.img_size=32", "model.patch_size=16", "+model.kwargs.depth=1")
TINY = KnowledgeScale(("model=mlp", "model.kwargs.hidden=[64,32,16]"), VIT, (1, 3), 3, 2, 1)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(SCALES, "small", TINY)


@pytest.fixture
def units(six_classes, tmp_path):
    options = prior_knowledge.arguments().parse_args(["--pictures", str(six_classes), "--out", str(tmp_path)])
    return {unit.key: unit for unit in plan(options, TINY, [0, 1])}


def lines_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_units_are_batches(units):
    assert len(units) == 2 * (len(TINY.sizes) + len(SHARING))
    assert "mlp/B = 3/seed 1" in units
    assert "ViT, B = 2, one label/seed 0" in units


def test_the_whole_study(tiny, study, refuse_work, tmp_path):
    code, printed, err = study(prior_knowledge)
    assert code == 0, err
    out = tmp_path / "out"
    text = (out / "prior_knowledge.md").read_text()
    assert text in printed
    assert "What differs, and why:" in text
    assert (out / "prior_knowledge.png").stat().st_size > 10_000
    single = {line["method"]: line for line in lines_of(out / "one-picture.csv")}
    assert set(single) == set(MATCHING)
    assert float(single[CLOSED]["psnr"]) > 100
    assert float(single[RANDOM]["psnr"]) < 20
    shared = lines_of(out / "repeated-labels.csv")
    assert {line["method"] for line in shared} == set(CERTIFYING[False]) | set(CERTIFYING[True])
    refused = [line for line in shared if line["method"] == RGAP]
    assert all(line["status"] == "refused" and "at most 1" in line["reason"] for line in refused)
    labels = {line["sharing"]: line for line in shared if line["method"] == LABELS}
    assert labels["MLP, B = 4, two labels twice"]["certificate"] == "certified"
    assert labels["MLP, B = 4, two labels twice"]["labels_exact"] == "True"
    assert "| 1 of 1 batches' labels |" in text
    before = (out / "results.jsonl").read_text()
    refuse_work(prior_knowledge)
    assert study(prior_knowledge)[0] == 0
    assert (out / "results.jsonl").read_text() == before


def test_other_steps_want_another_folder(tiny, study, unshown, monkeypatch):
    unshown(prior_knowledge)
    assert study(prior_knowledge)[0] == 0
    monkeypatch.setitem(SCALES, "small", replace(TINY, steps=4))
    code, _, err = study(prior_knowledge)
    assert code == 2
    assert "other settings" in err


@pytest.mark.parametrize("method", [SQUARED, COSINE, CLOSED])
def test_a_number_is_that_of_the_attack_called_directly(units, six_classes, method):
    unit = units["mlp/B = 3/seed 1"]
    entries = {entry["method"]: entry for entry in prior_knowledge.work(unit)}
    config = audit(six_classes, 1, "cpu", *TINY.mlp, "audit.batch_size=3", "attack=[inverting_gradients,fc_bias]")
    client = Client(config)
    setup = client.setup
    positions = draw_batch(setup.data.train.labels, [1, 1, 1], torch_generator(1, "prior-knowledge-batch"))
    observation, truth, _ = client.shares(positions, 1)
    probs = mean_softmax(setup.model, setup.data.auxiliary, setup.normaliser, training_mode=True)
    settings = of_method(method, config["attack"], TINY)
    seen = replace(observation, auxiliary_probs=probs)
    outcome = run_attack(seen, "prior_knowledge", settings, 1, torch.device("cpu"))
    found = score_against(outcome, truth).scores
    assert len(found.images) == 3
    assert entries[method]["psnrs"] == [one.psnr for one in found.images]


def test_matching_has_no_priors(six_classes):
    config = audit(six_classes, 0, "cpu", *TINY.mlp, "attack=[inverting_gradients]")
    settings = {method: of_method(method, config["attack"], TINY) for method in (SQUARED, COSINE, RANDOM)}
    assert all(one["priors"] == {} and one["parametrisation"]["boxed"] is False for one in settings.values())
    assert settings[SQUARED] == {**settings[COSINE], "objective": settings[SQUARED]["objective"]}
    assert settings[RANDOM]["target"] == "random"


def test_a_search_differs_from_plain_matching_by_what_its_name_says_alone(six_classes):
    config = audit(six_classes, 0, "cpu", *TINY.vit, "attack=[inverting_gradients,feature_target,row_space_batch]")
    plain, features, rows = (of_method(method, config["attack"], TINY) for method in (COSINE, FEATURES, ROW_SPACE))
    assert list(features["priors"]) == ["features"]
    assert rows["priors"] == {}
    for key in ("objective", "optimiser", "schedule", "steps", "restarts"):
        assert plain[key] == features[key] == rows[key]
    assert plain["parametrisation"] == features["parametrisation"]


def test_batches_repeat_labels_no_more_than_they_must():
    assert evenly(3, 10) == [1, 1, 1]
    assert evenly(16, 10) == [2] * 6 + [1] * 4
    labels = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
    chosen = draw_batch(labels, [1, 3], torch.Generator().manual_seed(0))
    counts = torch.bincount(labels[chosen], minlength=3)
    assert sorted(counts.tolist()) == [0, 1, 3]
    assert draw_batch(labels, [6], torch.Generator()) is None


def test_batches_that_a_method_refused_are_counted(tmp_path):
    def entry(method, seed, size, psnr, **more):
        known = {"sharing": None, "method": method, "seed": seed, "batch_size": size}
        return {**known, "status": "done" if psnr else "refused", **more} | ({"psnrs": psnr} if psnr else {})

    entries = [entry(CLOSED, 0, 1, [30.0]), entry(CLOSED, 1, 1, None), entry(CLOSED, 0, 2, [30.0, None])]
    entries += [entry(CLOSED, 1, 2, None)]
    ways = ([[4, 21.0]], [[8, 21.0]], [[8, 9.0]])
    entries += [entry(SQUARED, seed, 1, [30.0], curve=way) for seed, way in enumerate(ways)]
    single, batches, _ = page(entries, tmp_path, "").tables
    rows = {row[0]: row for row in single.rows}
    assert rows[CLOSED][1] == "30.0 (1 of 2)"
    assert rows[SQUARED][3] == "6 (2 of 3)"
    assert {row[0]: row for row in batches.rows}[CLOSED][2] == "30.0 (1 of 4)"


def test_wrong_certificates_are_counted():
    right = {"pictures_certified": 2, "psnrs": [300.0, 70.0, 12.0], "certificate": "certified"}
    assert wrong(CLOSED, [right]) == 0
    assert wrong(FIRST_BLOCK, [{**right, "psnrs": [300.0, 12.0, None]}]) == 1
    assert wrong(LABELS, [{"certificate": "certified", "labels_exact": False}]) == 1
    assert wrong(LABELS, [{"certificate": "uncertified", "labels_exact": False}]) == 0


def test_images_count_as_certified_only_where_the_batch_is():
    def entry(status):
        certificate = Certificate(status, "", {"exact": 3.0})
        outcome = AttackResult("o", "a", "done", certificate=certificate, images=torch.zeros(4, 3, 8, 8))
        return prior_knowledge._certified(outcome)["pictures_certified"]

    assert entry("uncertified") == 0
    assert entry("certified") == 4
