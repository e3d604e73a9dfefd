"""The command of MJP's Table 5 on the embedded model."""

import csv
import json
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from PIL import Image

from experiments.studies.mjp_table5 import study as mjp_table5
from experiments.studies.mjp_table5.rows import PAPER
from fedsim.metrics.image import PSNR_CAP
from fedsim.models import ModelSpec


@pytest.fixture(autouse=True)
def figure_of_the_whole_table_alone(request, monkeypatch):
    """The one test that looks at it."""
    if request.node.name != "test_the_whole_table":
        monkeypatch.setattr(mjp_table5, "write_figure", lambda *arguments: False)


def lines_of(out):
    with (out / "table5.csv").open() as file:
        return list(csv.DictReader(file))


def entries_of(out):
    lines = (out / "results.jsonl").read_text().splitlines()
    return [entry for line in lines for entry in json.loads(line)["entries"]]


def psnr(lines, row, attack):
    (line,) = [line for line in lines if (line["row"], line["attack"]) == (row, attack)]
    return float(line["psnr"])


def test_the_whole_table(table5, tmp_path):
    code, printed, err = table5("--count", "2", "--ratio", "0.2")
    assert code == 0, err
    lines = lines_of(tmp_path / "out")
    assert {line["row"] for line in lines if line["paper_psnr"]} == set(PAPER)
    for row in ("vit_s.a", "deit_s.a", "vit_s.b", "deit_s.b"):
        assert psnr(lines, row, "patch_gradient") == PSNR_CAP
        assert psnr(lines, row, "april") > 20
    assert psnr(lines, "mjp.a", "adaptive") == PSNR_CAP
    # The localisation's term is in the gradient, also in that of a clean picture: only who is told takes it out.
    assert psnr(lines, "mjp.a", "patch_gradient_told") == PSNR_CAP
    assert psnr(lines, "mjp.a", "patch_gradient") < 60
    assert psnr(lines, "mjp.a", "april_told") > psnr(lines, "mjp.a", "april") + 5
    assert psnr(lines, "mjp.b", "adaptive") > psnr(lines, "mjp.b", "patch_gradient")
    refused = {line["row"]: line["refused"] for line in lines if line["refused"]}
    assert set(refused) == {"no_pe.a", "no_pe.b"}
    assert "no_pe" in refused["no_pe.a"]
    # Φ(x̃) is nearer to x̃ than to x in structure.
    ssim = {(line["row"], line["attack"]): float(line["ssim"]) for line in lines if line["ssim"]}
    assert ssim["mjp.b", "adaptive"] > ssim["mjp.c", "adaptive"]
    assert all(line["acc"] == "" for line in lines)
    text = (tmp_path / "out" / "mjp_table5.md").read_text()
    assert text in printed
    assert "experiments.studies.mjp_table5 --pictures DIR --out DIR --count 2 --ratio 0.2" in text
    assert "| 0.1055 | 0.0166 | 11.52 |" in text
    assert "acc is empty" in text
    assert "the others leave it in" in text
    with Image.open(tmp_path / "out" / "table5.png") as figure:
        assert min(figure.size) > 300


def test_the_same_pictures_before_every_attack(table5, tmp_path):
    """x̃ is drawn by client, not by case: masks of all models are the same."""
    assert table5("--count", "2", "--ratio", "0.5", "--rows", "mjp.b", "deit_s.b")[0] == 0
    entries = entries_of(tmp_path / "out")
    for number in (0, 1):
        assert len({entry["masked"] for entry in entries if entry["number"] == number}) == 1
    stored = tmp_path / "out" / "pictures"
    with Image.open(stored / "jigsawed0.5" / "000.png") as seen:
        with Image.open(stored / "deit_s-stock-jigsawed0.5-patch_gradient" / "000.png") as rebuilt:
            assert seen.tobytes() == rebuilt.tobytes()
        with Image.open(stored / "x" / "000.png") as own:
            assert sorted(own.convert("L").tobytes()) == sorted(seen.convert("L").tobytes())
            assert own.tobytes() != seen.tobytes()


def test_results_of_another_defense_are_not_taken(table5, tmp_path, monkeypatch):
    rows = ["--rows", "mjp.b", "--ratio", "0.5", "--count", "1"]
    assert table5(*rows)[0] == 0
    assert " on " in (tmp_path / "out" / "mjp_table5.md").read_text()  # commit … on … CPU cores
    compose = mjp_table5.config_of

    def smoother(*arguments):
        config = compose(*arguments)
        config["defense"]["mjp"]["min_block"] = 1
        return config

    monkeypatch.setattr(mjp_table5, "config_of", smoother)
    before = len(entries_of(tmp_path / "out"))
    assert table5(*rows)[0] == 0
    assert len(entries_of(tmp_path / "out")) == 2 * before


def test_more_pictures_may_be_asked_for_later(table5, tmp_path, monkeypatch):
    monkeypatch.setattr(mjp_table5, "CHUNK", 1)
    rows = ["--rows", "deit_s.a", "mjp.a", "--ratio", "0.5"]
    assert table5("--count", "1", *rows)[0] == 0
    run, again = mjp_table5.work, []

    def counted(unit):
        again.append((unit.settings["case"].name, unit.settings["victims"][0][0]))
        return run(unit)

    monkeypatch.setattr(mjp_table5, "work", counted)
    assert table5("--count", "2", *rows)[0] == 0
    assert {number for _, number in again} == {1}
    assert all(line["pictures"] == "2" for line in lines_of(tmp_path / "out"))


def test_no_more_pictures_are_shown_than_were_kept(table5, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(mjp_table5, "write_figure", lambda rows, entries, shown, out: drawn.append(shown))
    rows = ["--rows", "deit_s.a", "--ratio", "0.5", "--count", "2"]
    for shown in ("1", "2"):
        assert table5(*rows, "--shown", shown)[0] == 0
    assert drawn == [1, 1]


def test_other_attacks_settings_are_no_results_of_this_table(table5, tmp_path):
    """A folder written when untold attackers subtracted the term too."""
    assert table5("--count", "1", "--rows", "mjp.a")[0] == 0
    path = tmp_path / "out" / "settings.json"
    written = json.loads(path.read_text())
    assert (written["attack.patch_gradient.localisation"], written["attack.april.told"]) == ("keep", False)
    path.write_text(json.dumps({k: v for k, v in written.items() if k != "attack.patch_gradient.localisation"}))
    code, _, err = table5("--count", "1", "--rows", "mjp.a")
    assert code == 2
    assert "attack.patch_gradient.localisation=None there, keep now" in " ".join(err.split())


def test_units_can_travel_to_other_processes(table5, tmp_path, monkeypatch):
    """As a pool sends them; that a pool works is shown of the harness."""

    def sent(work, todo, workers):
        for key, task in todo:
            work, task = ForkingPickler.loads(ForkingPickler.dumps((work, task)))
            yield key, ForkingPickler.loads(ForkingPickler.dumps(work(task)))

    monkeypatch.setattr("experiments.studies.harness.study.spread", sent)
    assert table5("--count", "1", "--rows", "baseline*", "mjp.c", "--ratio", "0.5")[0] == 0
    assert psnr(lines_of(tmp_path / "out"), "baseline.a", "mean_picture") > 5


def test_trained_weights_give_an_accuracy(table5, tmp_path):
    """Every class's row of the head stands where ImageNet has it; all others can never win."""
    model = ModelSpec("vit_nano_patch2_8", 1000).build(0)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.fill_(-5.0)
        model.head.bias[1] = 5.0  # n01443537, goldfish
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    arguments = ("--count", "6", "--rows", "deit_s.a", "--checkpoint", f"deit_s={tmp_path}/weights.pt")
    code, _, err = table5(*arguments)
    assert code == 0, err
    lines = lines_of(tmp_path / "out")
    assert [float(line["acc"]) for line in lines] == pytest.approx([100 / 3] * 2)
    code, _, err = table5("--count", "6", "--rows", "deit_s.a")
    assert code == 2
    assert "checkpoints.deit_s=" in err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--rows", "vit_l.a"], "--rows=vit_l.a: must be globs on vit_s.a"),
        (["--count", "0"], "--count=0"),
        (["--count", "7"], "at most 6"),
        (["--ratio", "1"], "--ratio=1.0"),
        (["--ratio", "0.5", "0.5"], "once"),
        (["--checkpoint", "weights.pt"], "MODEL=FILE"),
        (["--checkpoint", "mjp=nowhere.pt"], "no such file"),
        (["--shown", "-1"], "--shown=-1"),
        (["--workers", "0"], "--workers=0"),
        (["--pictures", "nowhere"], "no such folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_one_clear_line(table5, arguments, part):
    code, out, err = table5("--rows", "deit_s.a", *arguments)
    assert code == 2
    assert [line.startswith("error: ") for line in err.splitlines()] == [True]
    assert part in err
    assert "Traceback" not in out + err
