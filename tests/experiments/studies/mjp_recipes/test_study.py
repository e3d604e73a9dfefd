"""MJP by recipe of training, on pictures of 8x8 pixels and trainings of two rounds."""

import csv
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from experiments.studies.mjp_recipes import study
from experiments.studies.mjp_recipes.scales import RECIPES, SCALES, FedAvgScale
from experiments.studies.mjp_training.variants import TABLE_4, TABLE_8

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
    seeds=2,
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
    monkeypatch.setitem(study.SCALES, "small", TINY)
    fixed = ("--pictures", str(pictures), "--out", str(tmp_path / "out"), "--workers", "1")
    return partial(call_main, "experiments.studies.mjp_recipes.__main__", *fixed)


def lines(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def records(out):
    """By unit."""
    found = [json.loads(line) for line in (out / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    return {line["unit"]: line["entries"][0] for line in found}


def test_differences_are_those_of_the_records_seed_by_seed(call, tmp_path):
    code, page, err = call("--variants", "A", "B", "J")
    assert code == 0, err
    out = tmp_path / "out"
    known = records(out)
    assert set(known) == {
        f"{name}-{recipe}-{seed}" for name in "ABJ" for recipe in ("plain", "both") for seed in (0, 1)
    }

    def difference(ours, other, of):
        values = [of(known[f"{ours}-{seed}"]) - of(known[f"{other}-{seed}"]) for seed in (0, 1)]
        return np.mean(values), np.ptp(stats.t.interval(0.95, 1, np.mean(values), stats.sem(values))) / 2

    recipes = {line["variant"]: line for line in lines(out / "mjp_recipes_recipes.csv")}
    assert [line["recipe"] for line in recipes.values()] == ["both"] * 3
    expected = difference("J-both", "J-plain", lambda record: 100 * record["top1"])
    assert (float(recipes["J"]["top1"]), float(recipes["J"]["top1_reach"])) == pytest.approx(expected)
    alone = {(line["variant"], line["recipe"]): line for line in lines(out / "mjp_recipes_alone.csv")}
    assert set(alone) == {(name, recipe) for name in "BJ" for recipe in ("plain", "both")}
    expected = difference("J-both", "A-both", lambda record: record["position"]["mae_2d"]["mean"])
    row = alone["J", "both"]
    assert (float(row["mae_2d"]), float(row["mae_2d_reach"])) == pytest.approx(expected)
    assert float(row["paper_mae_2d"]) == pytest.approx(TABLE_8["J"][1] - TABLE_8["A"][1])
    assert float(row["paper_top1"]) == pytest.approx(TABLE_4["J"][0] - TABLE_4["A"][0])
    assert alone["B", "both"]["mae_1d"] == ""  # it has no position embedding
    rows = lines(out / "mjp_table8_recipes.csv")
    assert [(row["recipe"], row["variant"], row["seed"]) for row in rows] == [
        (recipe, variant, seed) for recipe in ("plain", "both") for variant in "AJ" for seed in "01"
    ]
    assert float(rows[0]["mae_1d"]) == known["A-plain-0"]["position"]["mae_1d"]["mean"]
    assert "- both: Table 8, MAE 1D: " in page
    assert "- Tiny." in page
    with Image.open(out / "figures" / "recipes.png") as figure:
        assert min(figure.size) > 200

    before = (out / "results.jsonl").read_text(encoding="utf-8")
    assert call("--variants", "J", "--recipes", "both")[0] == 0  # nothing to compare it with
    assert (out / "results.jsonl").read_text(encoding="utf-8") == before


@pytest.mark.parametrize("name", SCALES)
def test_recipes_differ_in_what_they_are_named_for_alone(name, tmp_path):
    found = SCALES[name].trainings(tmp_path, "cpu", 1)
    assert set(found) == set(RECIPES)
    assert found["plain"]["client"]["augment"] == []
    assert found["plain"]["client"]["schedule"]["shape"] == "constant"
    crop, flip = found["both"]["client"]["augment"]
    assert (crop["RandomCrop"]["size"], flip) == (found["both"]["model"]["img_size"], "RandomHorizontalFlip")
    assert found["both"]["client"]["schedule"]["shape"] == "cosine"
    for recipe, config in found.items():
        own = {"augment": [] if recipe in ("plain", "cosine") else [crop, flip]}
        shape = "cosine" if recipe in ("cosine", "both") else "plain"
        own["schedule"] = found["both" if shape == "cosine" else "plain"]["client"]["schedule"]
        assert config == {**found["plain"], "client": {**found["plain"]["client"], **own}}
        assert config["client"]["share"] == "weights"


def test_one_recipe_for_another_is_another_folder(call, tmp_path, monkeypatch):
    assert call("--variants", "A", "--recipes", "plain", "--seeds", "1")[0] == 0
    monkeypatch.setitem(study.SCALES, "small", replace(TINY, rate=2e-2))
    code, _, err = call("--variants", "A", "--recipes", "plain", "--seeds", "1")
    assert code == 2
    assert "other settings: trainings=" in err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--variants", "K"], "--variants=K: must be globs on A, B, C"),
        (["--recipes", "fast"], "--recipes=fast: must be one of plain, augment, cosine, both"),
    ],
)
def test_one_clear_line(call, arguments, part):
    code, _, err = call(*arguments)
    assert code == 2
    assert part in err
