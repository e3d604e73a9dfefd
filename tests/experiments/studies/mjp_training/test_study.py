"""The command of MJP's tables of trained models, on pictures of 8x8 pixels and trainings of two rounds."""

import csv
import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from experiments.cli.call import run_command
from experiments.commands.stage import CommandStage
from experiments.measure import command as measure
from experiments.run import command as federated
from experiments.studies.harness import federation
from experiments.studies.harness.options import begin, matching
from experiments.studies.mjp_training import figures
from experiments.studies.mjp_training.scales import SCALES, TrainingScale
from experiments.studies.mjp_training.variants import (
    LETTERS,
    RATIOS,
    TABLE_3,
    TABLE_4,
    TABLE_6,
    TABLE_8,
    of_ratio,
    plan,
)

TINY = TrainingScale(
    model=("model=vit_nano", "data.test_fraction=0.5"),
    rounds=2,
    clients=2,
    batch=2,
    rate=1e-2,
    ratio=0.27,
    test=None,
    measured=(0.3, 0.5),
    headline=0.5,
    draws=2,
    differs=("Tiny.",),
    folds=4,
)
TRAINED = ("A", "B", "D", "J")


def call(pictures, out, *arguments, scale=TINY):
    """Exit code; the pages go to standard output."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "MASKS_SHOWN", 2)
        patch.setitem(SCALES, "small", scale)
        fixed = ["--pictures", str(pictures), "--out", str(out), "--workers", "1"]
        patch.setattr(sys, "argv", ["mjp_training", *fixed, *arguments])
        try:
            begin("experiments.studies.mjp_training")
        except SystemExit as stop:
            return stop.code or 0
    return 0


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Two classes with ten pictures each."""
    root, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for name in ("dark", "light"):
        (root / name).mkdir()
        for number in range(10):
            pixels = rng.integers(0, 128, (8, 8, 3), dtype=np.uint8) + (128 if name == "light" else 0)
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def done(pictures, tmp_path_factory):
    """The folder of a finished command."""
    out = tmp_path_factory.mktemp("done") / "out"
    assert call(pictures, out, "--variants", *TRAINED) == 0
    return out


def lines_of(out, table):
    with (out / f"mjp_{table}.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("ratio", [0.03, 0.1, 0.27])
def test_every_table_has_its_models_and_none_is_trained_twice(ratio):
    variants = plan(ratio)
    trained = [(variant.defense, variant.ratio) for variant in variants]
    assert len(set(trained)) == len(trained)
    names = {variant.name for variant in variants}
    assert len(names) == len(variants)
    assert names == {*TABLE_4, *TABLE_6, *TABLE_8, *(of_ratio(share, ratio) for share in TABLE_3)}
    assert len(variants) == len(LETTERS) + len(RATIOS) - (2 if ratio in RATIOS else 1)


def test_globs_choose_variants():
    assert [variant.name for variant in matching("--variants", plan(0.27), ["A", "J*"])] == [
        "A",
        "J",
        *(f"J@{share:g}" for share in RATIOS[1:-1]),
    ]


def test_the_page(done):
    text = (done / "mjp_training.md").read_text(encoding="utf-8")
    assert "## Table 3: MJP over the mask ratio of its training" in text
    assert "scale small · seed 0" in text
    assert "Table 3, Consistency (%) at 0.5: " in text
    assert "Table 8, MAE 1D: " in text
    assert "Table 6, explained variance (%): too few to tell an order" in text  # one pair, in cumulative columns
    assert "--workers 1 --variants A B D J\n" in text
    assert "Table 4, top-1 (%): one standard error of 10 test pictures is " in text
    assert "Not trained: C, E, F, G, H, I, J@0.03" in text
    assert "- Tiny." in text
    assert "were not available for comparison" in text
    for name in ("ratios", "masks", "projection-pca", "attention-0"):
        assert f"(figures/{name}.png)" in text
        with Image.open(done / "figures" / f"{name}.png") as figure:
            assert min(figure.size) > 200


def test_rows_and_the_papers_numbers(done):
    rows = lines_of(done, "table3")
    assert [(row["variant"], row["row"], row["paper_top1"]) for row in rows] == [
        ("D", "0.0", "80.0"),
        ("J", "0.27", "80.3"),
    ]
    assert [row["variant"] for row in lines_of(done, "table4")] == list(TRAINED)
    without = lines_of(done, "table4")[1]
    assert (without["consistency@0.5"], without["paper_consistency@0.5"]) == ("100.0", "100.0")
    assert [row["variant"] for row in lines_of(done, "table6")] == ["A", "J"]
    assert [row["paper_mae_1d"] for row in lines_of(done, "table8")] == ["0.945", "1.301"]


def test_numbers_are_those_of_fedsim_measure(done, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "draw_all", lambda *_: [])
    settings = json.loads((done / "settings.json").read_text())["measure"]["measure"]
    keys = ("ratios", "draws", "folds", "dimensions", "batch_size")
    words = [f"measure.{key}={settings[key]}".replace(" ", "") for key in keys]
    run = done / "runs" / "J-0"
    arguments = [f"runs=[{run}]", f"run_dir={tmp_path}/measured", "device=cpu", "measure.num_images=null", *words]
    monkeypatch.setattr(sys, "argv", ["fedsim-measure", *arguments])
    monkeypatch.setattr(sys, "path", list(sys.path))
    run_command(CommandStage("fedsim-measure"))
    (record,) = json.loads((tmp_path / "measured" / "measures.json").read_text())["runs"]
    row = next(line for line in lines_of(done, "table3") if line["variant"] == "J")
    point = record["jigsaw"]["points"][1]
    assert float(row["top1"]) == 100 * record["top1"]
    assert float(row["consistency@0.5"]) == 100 * point["consistency"]["mean"]
    assert float(row["diff_norm@0.5"]) == point["diff_norm"]["mean"]
    variance = next(line for line in lines_of(done, "table6") if line["variant"] == "J")
    assert float(variance["explained_variance_4"]) == 100 * record["position"]["explained_variance"]["4"]
    regression = next(line for line in lines_of(done, "table8") if line["variant"] == "J")
    assert float(regression["mae_2d"]) == record["position"]["mae_2d"]["mean"]
    text = (done / "mjp_training.md").read_text(encoding="utf-8")
    assert f"| {point['diff_norm']['mean']:.2f} | 3.97 |" in text
    assert f"| {record['position']['mae_2d']['mean']:.3f} | 0.134 |" in text


def test_goes_on_where_it_was_killed(done, pictures, tmp_path, monkeypatch):
    """One model's results are lost, another was in the middle of its training."""
    out = tmp_path / "out"
    shutil.copytree(done, out)
    results = out / "results.jsonl"
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(line for line in lines if json.loads(line)["unit"] not in ("A-0", "J-0")))
    (out / "runs" / "J-0" / "summary.json").unlink()
    shutil.rmtree(out / "runs" / "J-0" / "checkpoints")
    trained, train = [], federation.run_federated

    def counted(config, root):
        trained.append((root.name, config["resume"] is not None))
        return train(config, root)

    monkeypatch.setattr(federation, "run_federated", counted)
    monkeypatch.setattr("experiments.studies.mjp_training.figures.draw_all", lambda *_: [])
    assert call(pictures, out, "--variants", *TRAINED) == 0
    assert trained == [("J-0", True)]
    name = "runs/J-0/checkpoints/round-00002.safetensors"
    before, after = load_file(done / name), load_file(out / name)
    assert all((before[key] == after[key]).all() for key in before)
    assert lines_of(out, "table3") == lines_of(done, "table3")


def test_an_interrupted_training_goes_on_with_its_learning_rate(pictures, tmp_path, monkeypatch, capsys):
    scale = replace(TINY, rounds=3, overrides=("resume_every_seconds=0",), measured=(0.5,), draws=1, folds=2)
    monkeypatch.setattr("experiments.studies.mjp_training.figures.draw_all", lambda *_: [])
    show, shown = federated._Run._show_round, []

    def interrupted(run, server_round, *rest):
        shown.append(server_round)
        if shown == [0, 1, 2]:
            raise KeyboardInterrupt
        show(run, server_round, *rest)

    monkeypatch.setattr(federated._Run, "_show_round", interrupted)
    assert call(pictures, tmp_path / "out", "--variants", "J", scale=scale) == 130
    assert call(pictures, tmp_path / "out", "--variants", "J", scale=scale) == 0
    assert shown == [0, 1, 2, 3]  # a round is shown once it need not be repeated
    assert call(pictures, tmp_path / "whole", "--variants", "J", scale=scale) == 0
    name = "runs/J-0/checkpoints/round-00003.safetensors"
    after, whole = load_file(tmp_path / "out" / name), load_file(tmp_path / "whole" / name)
    assert all((after[key] == whole[key]).all() for key in whole)
    assert "fraction_evaluate" not in capsys.readouterr().err, "Flower keeps silent before a run has its log"


def test_another_seed_adds_a_spread(done, pictures, tmp_path, monkeypatch):
    out = tmp_path / "out"
    shutil.copytree(done, out)
    monkeypatch.setattr("experiments.studies.mjp_training.figures.draw_all", lambda *_: [])
    assert call(pictures, out, "--variants", "A", "--seeds", "2") == 0
    assert {row["seed"] for row in lines_of(out, "table4")} == {"0", "1"}
    text = (out / "mjp_training.md").read_text(encoding="utf-8")
    assert "seeds 0, 1" in text
    assert " ± " in text.split("## Table 4")[1]


def test_other_masks_want_another_folder(done, pictures, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(done, out)
    assert call(pictures, out, "--variants", "A", scale=replace(TINY, ratio=0.2)) == 2
    assert "other settings: ratio=0.27 there, 0.2 now" in capsys.readouterr().err
    settings = json.loads((out / "settings.json").read_text())
    settings["defenses"]["J"]["mjp"]["ratio"] = 0.1
    (out / "settings.json").write_text(json.dumps(settings))
    assert call(pictures, out, "--variants", "A") == 2
    assert "other settings: defenses.J.mjp.ratio=0.1 there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--variants", "K"], "--variants=K: must be globs on A, B, C"),
        (["--pictures", "nowhere"], "--pictures=nowhere"),
    ],
)
def test_one_clear_line(pictures, tmp_path, capsys, arguments, part):
    assert call(pictures, tmp_path, *arguments) == 2
    assert part in capsys.readouterr().err
