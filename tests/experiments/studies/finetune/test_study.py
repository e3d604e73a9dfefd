import csv
from functools import partial

import pytest
import torch
from torch.nn import functional as F

import fedsim
from experiments.studies.finetune import study
from experiments.studies.second_order import victims
from fedsim.result import AttackResult

LATER = study.Case("lora", 3)
DRAWN = study.Start("drawn", 0)
ONE_START = ["--starts", "mean"]
"""Of a folder's picture all are tried."""


@pytest.fixture
def call(call_main, tmp_path, monkeypatch, few_last_steps):
    monkeypatch.setitem(study.BUDGETS, "small", (1, 1))
    return partial(call_main, "experiments.studies.finetune.__main__", "--out", str(tmp_path), "--workers", "1")


def test_a_cell_stands_beside_the_guess_and_what_the_update_holds(call, tmp_path):
    code, out, err = call("--backbones", "drawn", "--recipes", "head", "--images", "1", *ONE_START)
    assert code == 0, err
    with (tmp_path / "finetune.csv").open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert (row["backbone"], row["recipe"], row["numbers"], row["unknowns"]) == ("drawn", "head", "650", "192")
    assert 0 < int(row["rank"]) <= 64, "the classifier's gradient is that of 64 features"
    assert float(row["floor"]) < 60
    assert row["rounding"] == "", "directions are missing"
    assert float(row["guess"]) < float(row["public"]) < 60
    assert "no more" in out
    assert f"{192 - int(row['rank'])} directions missing" in out


def test_a_row_for_each_size_of_batch_with_an_entry_for_each_image(call, tmp_path):
    sizes = ["--images", "3", "--batches", "1", "2"]
    code, _, err = call("--backbones", "drawn", "--recipes", "head", *sizes, *ONE_START)
    assert code == 0, err
    with (tmp_path / "finetune.csv").open(newline="", encoding="utf-8") as file:
        one, two = csv.DictReader(file)
    assert [(row["batch"], row["unknowns"], row["done"]) for row in (one, two)] == [
        ("1", "192", "3"),
        ("2", "384", "4"),
    ]
    assert int(one["rank"]) < int(two["rank"]) <= 2 * 64
    assert float(one["guess"]) == pytest.approx(10.9, abs=1.5)
    assert one["certified"] == "0"


def test_a_picture_of_a_folder_is_exact_from_everything_and_stands_beside_its_reference(
    call, tmp_path, pictures, monkeypatch
):
    monkeypatch.setitem(study.SPECS, "vit_nano", study.DIGITS_MODEL)
    monkeypatch.setattr(victims, "SIDE", 8)
    drawn = ["--model", "vit_nano", "--backbones", "drawn", "--recipes", "full", "head"]
    code, out, err = call("--pictures", str(pictures), *drawn, "--images", "1")
    assert code == 0, err
    with (tmp_path / "finetune.csv").open(newline="", encoding="utf-8") as file:
        full, head = csv.DictReader(file)
    assert (full["rank"], full["certified"], full["exact"], full["recognisable"]) == ("192", "1", "1", "1")
    assert "| recognisable | above 60 dB | certified |" in out
    assert float(full["rounding"]) > 60
    assert float(full["public"]) >= float(full["rounding"]) - 0.1
    assert (head["exact"], head["rounding"]) == ("0", "")
    assert "half of the folder's pictures" in out


@pytest.mark.parametrize(("batch", "asked"), [(1, ["patch_gradient", "GaussNewton"]), (2, ["GaussNewton"])])
def test_the_closed_form_is_asked_for_one_picture_alone(batch, asked, monkeypatch):
    refused, found = AttackResult("o", "a", "refused", "why"), []
    monkeypatch.setattr(fedsim, "attack", lambda attack, *_, **__: found.append(attack) or refused)
    settings = {"pictures": "DIR", "batch": batch, "seed": 0, "steps": 1, "restarts": 1, "starts": ["mean"]}
    study.attacked(None, settings, "cpu")
    assert [one if isinstance(one, str) else type(one).__name__ for one in found] == asked


def test_nothing_stands_beside_an_update_too_large_for_its_derivative(monkeypatch):
    images, labels = victims.digits([0])
    seen = study.observed(DRAWN, study.Case("bias"), images, labels)
    monkeypatch.setattr(study, "WHOLE", 1930 * 192 - 1)
    assert study.held(seen, images, labels, seen.image_prior) == {"rank": None, "unknowns": 192}
    monkeypatch.setattr(study, "WHOLE", 1930 * 192)
    assert study.held(seen, images, labels, seen.image_prior)["rank"] == 192


def test_a_trained_backbone_has_learned_the_pictures_that_no_client_holds(pictures, monkeypatch):
    monkeypatch.setattr(study, "OF_PICTURES", (20, 1e-3, 4))
    monkeypatch.setattr(victims, "SIDE", 8)
    monkeypatch.setitem(study.SPECS, "vit_nano", study.DIGITS_MODEL)
    starts = [study.Start(backbone, 0, str(pictures), "vit_nano") for backbone in ("drawn", "trained")]
    images, labels = starts[0].source.of_nobody()
    assert len(images) == len(labels) > 0
    drawn, trained = (study.public_backbone(start).eval() for start in starts)
    study.public_backbone.cache_clear()
    inputs = (images.float() - 0.5) / 0.5
    assert F.cross_entropy(trained(inputs), labels) < F.cross_entropy(drawn(inputs), labels)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"done": 0, "exact": 0, "rank": 3, "unknowns": 3}, "refused"),
        ({"done": 2, "exact": 2, "rank": 3, "unknowns": 3}, "found"),
        ({"done": 2, "exact": 0, "rank": 1, "unknowns": 3}, "2 directions missing"),
        ({"done": 2, "exact": 1, "rank": 3, "unknowns": 3}, "the search fell short in 1"),
        ({"done": 2, "exact": 0, "rank": None, "unknowns": 3}, "the search fell short in 2"),
    ],
)
def test_a_row_says_what_its_floor_means(values, said):
    assert study.outcome(values) == said


def test_images_short_of_60_db_count_as_recognisable_where_they_show_more_than_their_guess():
    entries = [{"refused": "why"}]
    for decibels, guess in ((59.0, 11.0), (20.0, 11.0), (19.9, 11.0), (24.0, 23.5)):
        entries.append({"squared_error": 10 ** (-decibels / 10), "guess": 10 ** (-guess / 10)})
    row = study.cell([{**entry, "certified": False} for entry in entries])
    assert row["recognisable"] == 2
    assert study.spread(row) == "19.9 / 59.0"
    assert study.spread(study.cell([])) == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--recipes", "qlora"], "--recipes=qlora"),
        (["--backbones", "train"], "--backbones=train: must be globs on trained, drawn"),
        (["--model", "vit_nano"], "--model=vit_nano: must be left out without --pictures"),
        (["--model", "vit_small"], "--model=vit_small: must be one of vit_tiny, vit_nano"),
        (["--images", "101"], "--images"),
        (["--starts", "here"], "--starts=here"),
        (["--batches", "0"], "--batches=0: must be 1 to 100"),
    ],
)
def test_wrong_options_are_refused(call, arguments, said):
    code, _, err = call(*arguments)
    assert code == 2
    assert said in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--recipes", "full", "--images", "4"], "--images=4: must be 1 to 2 in batches of 1, {} having 2 p"),
        (["--recipes", "full", "--images", "3", "--batches", "2"], "--images=3: must be 1 to 2 in batches of 2"),
        (["--recipes", "full", "--batches", "4"], "--batches=4: must be 1 to 2, {} having 2 private images"),
        (["--recipes", "lora round 2", "--images", "1"], "--pictures={}: must be a folder with 300 private images"),
    ],
)
def test_more_images_than_a_folder_has_are_refused_before_any_work(call, pictures, refuse_work, arguments, said):
    refuse_work(study)
    code, _, err = call("--pictures", str(pictures), *arguments)
    assert code == 2
    assert said.format(pictures) in err


def test_more_classes_than_outputs_are_refused_before_any_work(call, pictures, refuse_work, monkeypatch):
    monkeypatch.setattr(victims, "CLASSES", 2)
    victims._folder.cache_clear()
    refuse_work(study)
    code, _, err = call("--pictures", str(pictures), "--images", "1")
    assert code == 2
    assert f"--pictures={pictures}: must be a folder of at most 2 classes, not 3" in err


@pytest.mark.usefixtures("failing_attacks")
def test_an_attack_that_fails_is_tried_again(call, tmp_path):
    code, _, err = call("--backbones", "drawn", "--recipes", "head", "--images", "1")
    assert code == 2
    assert "OutOfMemoryError: full; the same command tries it again" in err
    assert not (tmp_path / "results.jsonl").exists()


def test_rounds_before_the_attacked_one_move_the_factors_alone(monkeypatch):
    monkeypatch.setattr(study, "HELD", 5)
    study.at_round.cache_clear()
    first, later = (study.at_round(DRAWN, case).state_dict() for case in (study.CASES["lora round 1"], LATER))
    study.at_round.cache_clear()
    moved = {name for name, tensor in later.items() if not torch.equal(tensor, first[name])}
    assert moved == {name for name in first if "lora" in name or name.startswith("head.")}
    base = study.public_backbone(DRAWN).state_dict()
    assert all(torch.equal(tensor, first[name]) for name, tensor in base.items())
    images, labels = victims.digits([0])
    growing = [study.observed(DRAWN, case, images, labels).update.tensors for case in (study.Case("lora"), LATER)]
    study.at_round.cache_clear()
    assert [bool(one["blocks.0.attn.qkv.lora_A"].any()) for one in growing] == [False, True]
