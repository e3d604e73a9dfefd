"""MJP by recipe of training, on pictures of 8x8 pixels and trainings of two rounds."""

import csv
import json
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from PIL import Image

from experiments.studies.mjp_training import study
from experiments.studies.mjp_training.scales import RECIPE_SCALES, RECIPES, FedAvgScale

TINY = FedAvgScale(
    model=("model=vit_nano", "data.test_fraction=0.5"),
    side=8,
    rounds=2,
    clients=2,
    batch=4,
    rate=1e-2,
    ratio=0.27,
    test=None,
    measured=(0.5,),
    headline=0.5,
    draws=1,
    differs=("Tiny.",),
    folds=4,
    seeds=3,
)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Two classes with twelve pictures each."""
    root, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for name in ("dark", "light"):
        (root / name).mkdir()
        for number in range(12):
            pixels = rng.integers(0, 128, (8, 8, 3)) + (128 if name == "light" else 0)
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{number}.png")
    return root


@pytest.fixture
def call(call_main, pictures, tmp_path, monkeypatch):
    monkeypatch.setitem(study.RECIPE_SCALES, "small", TINY)
    fixed = ("--pictures", str(pictures), "--out", str(tmp_path / "out"), "--workers", "1")
    return partial(call_main, "experiments.studies.mjp_training.__main__", *fixed)


def lines(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def records(out):
    """By unit."""
    found = [json.loads(line) for line in (out / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    return {line["unit"]: line["entries"][0] for line in found}


def test_the_page_and_that_it_goes_on(call, tmp_path, monkeypatch):
    code, page, err = call("--variants", "A", "J", "--recipes", "plain", "both", "--seeds", "1")
    assert code == 0, err
    out = tmp_path / "out"
    known = records(out)
    assert set(known) == {f"{name}-{recipe}-0" for name in "AJ" for recipe in ("plain", "both")}
    assert known["A-plain-0"]["loss"] != known["A-both-0"]["loss"]
    (row, *_) = lines(out / "mjp_alone.csv")
    expected = (known[f"{name}-plain-0"]["position"]["mae_2d"]["mean"] for name in "JA")
    assert float(row["mae_2d"]) == pytest.approx(np.subtract(*expected))
    rows = lines(out / "mjp_table8_recipes.csv")
    assert [(row["recipe"], row["variant"]) for row in rows] == [*product(("plain", "both"), "AJ")]
    assert float(rows[0]["mae_1d"]) == known["A-plain-0"]["position"]["mae_1d"]["mean"]
    assert "- both: Table 8, MAE 1D: " in page
    middle = np.abs(np.arange(16) - 7.5).mean()  # of a grid of 4x4
    assert f"names the middle is {middle:.2f} places off in 1D" in page
    assert "- Tiny." in page
    assert "Test pictures: 12, the same for all of a seed. " in page, "without a test folder each seed draws its own"
    with Image.open(out / "figures" / "recipes.png") as figure:
        assert min(figure.size) > 200
    before = (out / "results.jsonl").read_text(encoding="utf-8")
    code, page, err = call("--variants", "J", "--recipes", "both", "--seeds", "1")
    assert code == 0, err
    assert (out / "results.jsonl").read_text(encoding="utf-8") == before
    assert "beside" not in page.split("## ")[1]  # nothing to compare it with
    monkeypatch.setitem(study.RECIPE_SCALES, "small", replace(TINY, rate=2e-2))
    code, _, err = call("--variants", "A", "--recipes", "plain")
    assert code == 2
    assert "other settings: trainings." in err


@pytest.mark.parametrize("name", RECIPE_SCALES)
def test_recipes_differ_in_what_they_are_named_for_alone(name, tmp_path):
    found = RECIPE_SCALES[name].trainings(tmp_path, "cpu", 1)
    assert set(found) == set(RECIPES)
    assert found["plain"]["client"]["augment"] == []
    assert found["plain"]["client"]["schedule"]["shape"] == "constant"
    crop, flip = found["both"]["client"]["augment"]
    side = found["both"]["model"]["img_size"] or 224  # null: that of DeiT-S
    assert (crop["RandomCrop"]["size"], flip) == (side, "RandomHorizontalFlip")
    assert found["both"]["client"]["schedule"]["shape"] == "cosine"
    for recipe, config in found.items():
        own = {"augment": [] if recipe in ("plain", "cosine") else [crop, flip]}
        shape = "cosine" if recipe in ("cosine", "both") else "plain"
        own["schedule"] = found["both" if shape == "cosine" else "plain"]["client"]["schedule"]
        assert config == {**found["plain"], "client": {**found["plain"]["client"], **own}}
        assert config["client"]["share"] == "weights"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--variants", "K", "--recipes", "plain"], "--variants=K: must be globs on A, B, C"),
        (["--recipes", "fast"], "--recipes=fast: must be globs on plain, augment, cosine, both"),
    ],
)
def test_one_clear_line(call, arguments, part):
    code, _, err = call(*arguments)
    assert code == 2
    assert part in err
