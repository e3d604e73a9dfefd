"""Accuracy by recipe, on pictures of 8x8 pixels and trainings of two rounds."""

import csv
import json
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from experiments.studies.finetune_accuracy import scales, study, tables, unit
from experiments.studies.finetune_accuracy.halves import linked
from experiments.studies.finetune_accuracy.study import best_rate
from experiments.studies.harness.ledger import settle
from fedsim.errors import ConfigError
from fedsim.models import Architecture, ModelSpec

TINY = scales.Scale(
    model=("model=vit_nano", "model.img_size=8"),
    side=8,
    public_steps=2,
    public_batch=4,
    clients=2,
    rounds=2,
    steps=1,
    batch=4,
    search_rounds=1,
    seeds=2,
)
RECIPES = {"full": scales.Recipe(("finetune=full",), (1e-3,)), "head": scales.Recipe(("finetune=head",), (1e-3, 1e-2))}
CLASSES = ("ant", "bee", "cow", "dog", "elk")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    root, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for split, count in (("train", 10), ("val", 3)):
        for name in CLASSES:
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")
    return root


@pytest.fixture
def call(call_main, pictures, tmp_path, monkeypatch, few_last_steps):
    monkeypatch.setitem(study.SCALES, "small", TINY)
    for module in (scales, study, tables):
        monkeypatch.setattr(module, "RECIPES", RECIPES)
    fixed = ("--pictures", str(pictures), "--out", str(tmp_path / "out"), "--workers", "1")
    return partial(call_main, "experiments.studies.finetune_accuracy.__main__", *fixed)


def lines(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_page_and_that_it_goes_on(call, tmp_path):
    code, page, err = call("--attacked", "1")
    assert code == 0, err
    out = tmp_path / "out"
    full, head = lines(out / "finetune_accuracy.csv")
    assert (full["difference"], full["reach"], full["cpu_ratio"]) == ("0.0", "0.0", "1.0")
    assert int(head["bytes"]) == 4 * (64 * 3 + 3)
    assert (head["seeds"], len(lines(out / "finetune_accuracy_rates.csv"))) == ("2", 3)
    assert float(full["floor"]) > 60 > float(head["floor"])
    assert "the first or last that was tried" in page
    assert "behind the accuracy their standard deviation" in page
    start = load_file(out / "pretrained.safetensors")
    assert start["head.weight"].shape == (3, 64)
    end = load_file(out / "runs" / f"head_{float(head['rate']):g}_seed_1" / "checkpoints" / "round-00002.safetensors")
    assert {name for name in start if not torch.equal(start[name], end[name])} == {"head.weight", "head.bias"}
    run = out / "runs" / f"head_{float(head['rate']):g}_seed_0"
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    before = (out / "results.jsonl").read_text()
    found = [entry for line in before.splitlines() for entry in json.loads(line)["entries"]]
    assert last["accuracy"] in [entry.get("accuracy") for entry in found if entry.get("recipe") == "head"]
    assert call("--attacked", "1")[0] == 0
    assert (out / "results.jsonl").read_text() == before


@pytest.mark.usefixtures("failing_attacks")
def test_an_attack_that_fails_is_tried_again(call, tmp_path, monkeypatch):
    vit = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=3), (), 0).build()
    monkeypatch.setattr(unit, "trained", lambda one: {"rate": 1.0, **one.settings, "accuracy": 0.0})
    monkeypatch.setattr(unit, "_prepared", lambda one: vit)
    code, _, err = call("--recipes", "head", "--attacked", "1")
    assert code == 2
    assert "OutOfMemoryError: full; the same command tries it again" in err
    recorded = [json.loads(line)["unit"] for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert len(recorded) == 1 + 3 + 4, "what was trained is kept"
    assert not any("attack" in key for key in recorded)


def test_halves_of_the_classes_are_apart(pictures, tmp_path):
    places = linked(pictures, tmp_path)
    names = {half: {one.name for one in (places[half] / "train").iterdir()} for half in ("public", "private")}
    assert names == {"public": {"ant", "bee"}, "private": {"cow", "dog", "elk"}}
    assert {one.name for one in places["held"].iterdir()} == names["private"]
    assert len(list((places["held"] / "cow").iterdir())) == 10
    assert linked(pictures, tmp_path) == places
    with pytest.raises(ConfigError, match="a folder with train/ and val/ of the same classes"):
        linked(pictures / "train", tmp_path)


def test_the_best_rate_is_the_smallest_of_equals():
    tried = [{"recipe": "a", "rate": rate, "accuracy": value} for rate, value in ((0.1, 0.5), (0.2, 0.7), (0.3, 0.7))]
    assert best_rate("a", [*tried, {"recipe": "b", "rate": 9.0, "accuracy": 1.0}]) == 0.2


def test_wrong_options_are_refused(call):
    for arguments, said in ((("--recipes", "qlora"), "--recipes=qlora"), (("--attacked", "-1"), "--attacked=-1")):
        code, _, err = call(*arguments)
        assert code == 2
        assert said in err


def test_a_refused_call_links_nothing(call, pictures, tmp_path):
    out = tmp_path / "out"
    settle(out / "settings.json", {"pictures": "elsewhere"})
    code, _, err = call()
    assert code == 2
    assert "results of other settings" in err
    assert not (out / "classes").exists()


def test_no_more_pictures_are_attacked_than_there_are(call):
    code, _, err = call("--attacked", "31")
    assert code == 2
    assert "--attacked=31: must be at most 30, the clients' pictures" in err
