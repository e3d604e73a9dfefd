import csv
from functools import partial

import pytest
import torch

from experiments.studies.realism import study, work
from experiments.studies.realism.rungs import RUNGS
from fedsim.bounds.public_prior import PublicPrior
from fedsim.ground_truth import GroundTruth


@pytest.fixture
def call(call_main, tmp_path, monkeypatch, few_last_steps):
    search = {"second": {"steps": 1, "restarts": 1, "starts": ["closed_form"]}, "first": 1}
    monkeypatch.setitem(work.BUDGETS, "small", search)
    return partial(call_main, "experiments.studies.realism.__main__", "--out", str(tmp_path), "--workers", "1")


def test_the_start_gives_the_image_away_and_is_not_computed_again(call, tmp_path, monkeypatch):
    rungs = ("--rungs", "start", "alone: dropout*", "--images", "1")
    code, out, err = call(*rungs)
    assert code == 0, err
    with (tmp_path / "realism.csv").open(newline="", encoding="utf-8") as file:
        start, dropout = csv.DictReader(file)
    for row in (start, dropout):
        assert float(row["closed form"]) > 100, "the closed form reads nothing behind the embedding"
        assert float(row["closed form"]) > float(row["nearest"]) > float(row["guess"])
    assert "the model draws" in out
    assert (tmp_path / "realism.png").exists()
    monkeypatch.setattr(study, "work", lambda unit: pytest.fail(f"{unit.key} was computed again"))
    assert call(*rungs)[0] == 0


def test_what_is_held_against_the_own_picture_has_the_guess_of_that_beside_it():
    own = torch.zeros(1, 1, 4, 4)
    own[..., 2:] = 1.0
    seen = own.roll(2, dims=-1)
    seen[..., 2:] = 0.5  # a crop: half of the picture left it
    public = torch.full((3, 1, 4, 4), 0.5, dtype=torch.float64)
    truth = GroundTruth(seen, torch.zeros(1, dtype=torch.long), ("a",), own)
    entry = work.guessed(truth, public)
    assert entry["private"] == pytest.approx([6.02], abs=0.01)
    assert entry["psnrs"] == pytest.approx([9.03], abs=0.01)
    line = study.numbers([entry])
    assert (line["own_guess"], line["guess"]) == (entry["private"][0], entry["psnrs"][0])
    old = {key: value for key, value in entry.items() if key != "private"}
    assert study.numbers([old])["own_guess"] is None, "of results of an earlier version"


def test_an_attack_that_answered_for_part_of_the_pictures_is_not_the_best():
    guess = {"attack": "guess", "psnrs": [10.0, 11.0], "nearest": [9.0, 9.0], "moved": [0.0, 0.0]}
    part, whole = ({"attack": name} for name in ("patch_gradient", "gauss_newton"))
    line = study.numbers([guess, {**part, "psnrs": [90.0]}, {**whole, "psnrs": [12.0, 30.0], "private": [12.0, 30.0]}])
    assert (line["best"], line["recognisable"], line["pictures"]) == ("gauss_newton", 1, 2)


def test_the_reference_of_one_update_is_that_of_two_that_tell_the_same():
    generator = torch.Generator().manual_seed(0)
    public = torch.rand(50, 1, 4, 4, generator=generator, dtype=torch.float64)
    jacobian = 10.0 * torch.randn(40, 16, generator=generator, dtype=torch.float64)
    prior = PublicPrior.of(public)
    one = work.reference([jacobian], prior)
    assert one == pytest.approx(work.reference([jacobian, jacobian], prior), abs=1e-6)
    assert one > work.reference([jacobian[:8]], prior) > work.reference([jacobian[:1]], prior)


def test_rungs_stand_alone_before_they_stand_together():
    assert RUNGS["alone: batch 8"].pictures == 8
    *_, last = RUNGS.values()
    assert (last.finetune, last.trained, last.pictures, last.draws) == ("lora", True, 64, True)


@pytest.mark.parametrize(
    ("rung", "passes"),
    [
        ("start", 1),
        ("alone: 10 steps", 10),
        ("alone: batch 8", 64),
        ("alone: an epoch of 8 pictures", 64),
        ("together: and 10 steps of AdamW", 640),
        ("together: and LoRA", 4096),
    ],
)
def test_what_a_search_of_second_order_costs_decides_whether_it_is_run(rung, passes):
    assert RUNGS[rung].differentiations == passes
    assert (passes <= work.LARGEST_SEARCH) == (passes < 100)


def test_a_family_without_an_image_for_most_pictures_says_none():
    entries = [{"attack": "row_space", "psnrs": [0.0, 31.0, 0.0]}]
    assert study.said(entries, ("row_space",), 0.0) == "none"
    assert study.said(entries, ("row_space",), 31.04) == "31.0"
    assert study.said(entries, ("row_space",), None) == "refused"
    assert study.said(entries, ("first_block",), None) == "not run"


def test_a_folder_of_too_few_pictures_is_refused_before_any_work(call, pictures, refuse_work):
    refuse_work(study)
    code, _, err = call("--pictures", str(pictures), "--rungs", "start", "alone: batch 8")
    assert code == 2
    assert f"--pictures={pictures}: must be a folder whose clients hold 8 images, not " in err


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--rungs", "moon"], "--rungs=moon"), (["--images", "65"], "--images")]
)
def test_wrong_options_are_refused(call, arguments, said):
    code, _, err = call(*arguments)
    assert code == 2
    assert said in err
