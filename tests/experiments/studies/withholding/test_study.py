"""The command that finds what to withhold, on the embedded model and digits."""

import csv
import json
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from experiments.studies.harness.study import code_and_machine
from experiments.studies.withholding import search as withholding_search
from experiments.studies.withholding.options import arguments
from experiments.studies.withholding.study import training_config, training_runs

FAST = ["--count", "1", "--variants", "stock", "--rounds", "0"]


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """The first 60 embedded digits, in a folder for each class."""
    from sklearn.datasets import load_digits

    root, bunch = tmp_path_factory.mktemp("digits"), load_digits()
    for number, (image, label) in enumerate(zip(bunch.images[:60], bunch.target[:60], strict=True)):
        (root / str(label)).mkdir(exist_ok=True)
        Image.fromarray((image * 255 / 16).round().astype("uint8")).convert("RGB").save(
            root / str(label) / f"{number}.png"
        )
    return root


@pytest.fixture
def withhold(call_main, tmp_path):
    """Exit code, standard output and errors; results go to `tmp_path/out`."""
    return partial(call_main, "experiments.studies.withholding.__main__", "--out", str(tmp_path / "out"))


@pytest.fixture
def few_groups(monkeypatch):
    """All but three groups are withheld together: what one of them stops, all of them stop. Each is an audit more."""
    candidates = withholding_search.candidates

    def merged(model):
        groups = candidates(model)
        alone = {name: groups.pop(name) for name in ("pos_embed", "patch_weight", "qkv_weight")}
        return {**alone, "rest": tuple(name for names in groups.values() for name in names)}

    monkeypatch.setattr(withholding_search, "candidates", merged)


def lines_of(out, name="withholding.csv"):
    with (out / name).open() as file:
        return list(csv.DictReader(file))


def smallest(lines, level):
    return {line["withheld"] for line in lines if line["level"] == level and line["smallest"] == "1"}


def test_the_answer_depends_on_who_attacks(few_groups, withhold, tmp_path, digits):
    arguments = ["--count", "1", "--variants", "stock", "--levels", "published", "linear", "--pictures", str(digits)]
    code, _, err = withhold(*arguments, "--rounds", "1", "--clients", "2", "--seeds", "1", "--train", "1")
    assert code == 0, err
    lines = lines_of(tmp_path / "out")
    assert smallest(lines, "published") == {"patch_weight"}
    assert smallest(lines, "linear") == {"pos_embed + qkv_weight", "patch_weight + qkv_weight"}
    found = {(line["level"], line["withheld"]): line for line in lines}
    assert float(found["linear", "nothing"]["best_least"]) > 100
    alone = found["linear", "patch_weight"]
    assert (alone["attack"], alone["stops"]) == ("qkv_row_space", "0")
    # The study's own attack has no bound of its error: exact, and not certified.
    assert (float(alone["best_least"]) > 100, alone["certified"]) == (True, "0")
    assert found["linear", "nothing"]["certified"] == found["linear", "pos_embed"]["certified"] == "1"
    for name in smallest(lines, "linear"):
        line = found["linear", name]
        assert float(line["best_mean"]) <= float(line["guess"]) + 3
        assert line["certified"] == "0"
    costs = {
        (line["withheld"], line["mode"]): float(line["accuracy"]) for line in lines_of(tmp_path / "out", "accuracy.csv")
    }
    assert set(costs) == {("nothing", ""), ("patch_weight", "private"), ("patch_weight", "frozen")}
    assert all(0 <= accuracy <= 1 for accuracy in costs.values())
    trainings, last = tmp_path / "out" / "trainings", "training-0/checkpoints/round-00001.safetensors"
    runs = ("nothing", "patch_weight-private", "patch_weight-frozen")
    plain, private, frozen = (load_file(trainings / run / last) for run in runs)
    weight, other = "patch_embed.proj.weight", "blocks.1.mlp.fc1.weight"
    # The server never sees it change; clients that train it for themselves change the others by it.
    assert torch.equal(private[weight], frozen[weight])
    assert not torch.equal(plain[weight], frozen[weight])
    assert not torch.equal(private[other], frozen[other])
    with Image.open(tmp_path / "out" / "withholding.png") as chart:
        assert min(chart.size) > 300


def test_another_seed_also_draws_the_data(tmp_path):
    options = arguments().parse_args(["--out", str(tmp_path), "--seed", "3", "--seeds", "2"])
    runs = training_runs(options, training_config(options), SimpleNamespace(config=lambda *_: {}), [])
    assert [(unit.config["seed"], unit.config["data"]["seed"]) for unit, _, _ in runs] == [(3, 3), (4, 4)]


def test_a_level_that_would_repeat_the_one_before_is_left_out(few_groups, withhold, tmp_path):
    """Nobody models the later projections of APRIL's architecture: there is no attacker who searches in them."""
    code, out, err = withhold("--count", "1", "--variants", "april", "--levels", "linear", "search", "--rounds", "0")
    assert code == 0, err
    assert {line["level"] for line in lines_of(tmp_path / "out")} == {"linear"}
    assert "## april, search" not in out
    assert "- april, search: later_row_spaces does not apply" in out
    assert "the next projections are not modelled" in out
    assert all(float(line["best_mean"]) >= float(line["guess"]) for line in lines_of(tmp_path / "out"))


def test_goes_on_where_it_was_killed(few_groups, withhold, tmp_path, monkeypatch):
    assert withhold(*FAST, "--levels", "published")[0] == 0
    results, whole = tmp_path / "out" / "results.jsonl", (tmp_path / "out" / "withholding.csv").read_bytes()
    assert (tmp_path / "out" / "withholding.md").read_text().startswith(f"{code_and_machine('cpu')}\n")
    (nothing,) = [line for line in lines_of(tmp_path / "out") if line["withheld"] == "nothing"]
    assert nothing["certified"] == "1"
    before = results.read_text().splitlines(keepends=True)
    results.write_text("".join(before[:-5]) + before[-5][:10])
    assert withhold(*FAST, "--levels", "published")[0] == 0
    after = results.read_text().splitlines(keepends=True)
    assert after[:-5] == before[:-5]
    assert [without_time(line) for line in after] == [without_time(line) for line in before]
    assert (tmp_path / "out" / "withholding.csv").read_bytes() == whole
    assert withhold(*FAST, "--levels", "published")[0] == 0
    assert results.read_text().splitlines(keepends=True) == after
    code, _, err = withhold(*FAST, "--levels", "published", "--seed", "1")
    assert code == 2
    assert "seed=0 there, 1 now" in err
    monkeypatch.setitem(withholding_search.OWN["qkv_row_space"], "search", True)
    code, _, err = withhold(*FAST, "--levels", "published")
    assert code == 2
    assert "--out=" in err
    assert "attacks.qkv_row_space.search=False there" in err


def without_time(line):
    return {key: value for key, value in json.loads(line).items() if key != "seconds"}


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--count", "0"], "--count=0"),
        (["--rounds", "-1"], "--rounds=-1"),
        (["--margin", "0"], "--margin=0.0"),
        (["--model", "vit_nan"], "vit_nan"),
        (["--pictures", "nowhere"], "no such folder"),
        (["--count", "100000"], "at most"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_one_clear_line(withhold, arguments, part):
    code, out, err = withhold(*FAST, *arguments)
    assert code == 2
    assert [line.startswith("error: ") for line in err.splitlines()] == [True]
    assert part in err
    assert "Traceback" not in out + err
