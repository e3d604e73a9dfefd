"""`fedsim-measure` as a user calls it, in this process."""

import csv
import errno
import json
import sys

import numpy as np
import pytest
from PIL import Image

from experiments.cli.call import run_command
from experiments.commands.stage import CommandStage
from experiments.measure import command as measure
from tests.experiments.measure.recorded import MJP, NO_PE

SMALL = ["device=cpu", "measure.num_images=20", "measure.draws=2", "measure.repeats=2", "measure.ratios=[0,0.3]"]


@pytest.fixture
def fedsim_measure(monkeypatch, capsys):
    """Exit code, standard output and errors."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedsim-measure", *arguments])
        monkeypatch.setattr(sys, "path", list(sys.path))
        code = 0
        try:
            run_command(CommandStage("fedsim-measure"))
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def no_figures(monkeypatch):
    """Most of the time that a small comparison takes."""
    monkeypatch.setattr(measure, "draw_all", lambda *_: [])


def folder_of(root, names):
    for number, name in enumerate(names):
        (root / name).mkdir(parents=True)
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / name / "0.png")
    return root


def test_runs_compared_with_everything_measured(fedsim_measure, write_run, tmp_path):
    runs = [write_run("a"), write_run("b", seed=1), write_run("c", MJP), write_run("d", NO_PE)]
    hard, foreign = folder_of(tmp_path / "hard", ["1", "2"]), folder_of(tmp_path / "foreign", ["moss"])
    code, out, err = fedsim_measure(
        *SMALL,
        f"runs=[{','.join(map(str, runs))}]",
        "names=[base,base,mjp,no_pe]",
        f"run_dir={tmp_path}/out",
        "measure.projections=[pca]",
        "measure.attention=2",
        "measure.corruptions.names=[fog,contrast]",
        "measure.corruptions.severities=[1,5]",
        "measure.corruptions.reference=base",
        f"measure.hard={hard}",
        f"measure.foreign={foreign}",
    )
    assert code == 0, err
    assert out.strip().splitlines()[-1] == f"{tmp_path}/out"
    measures = json.loads((tmp_path / "out" / "measures.json").read_text())
    base, again, mjp, no_pe = measures["runs"]
    assert [run["name"] for run in measures["runs"]] == ["base", "base", "mjp", "no_pe"]
    assert base["features"] == "the class token after the last norm"
    assert [run["jigsaw"]["mask_embedding"] for run in (base, mjp, no_pe)] == ["own", "unknown", "own"]
    assert all(run["jigsaw"]["points"][0]["diff_norm"]["mean"] == 0 for run in measures["runs"])
    assert no_pe["jigsaw"]["points"][1]["consistency"]["mean"] == 1.0
    assert mjp["position"]["chance_1d"] == 4.0
    assert no_pe["position"] is None
    assert no_pe["notes"] == ["position embeddings: it has none for each patch"]
    assert len(base["corruptions"]["errors"]["fog"]) == 2
    mces = [run["corruptions"]["mce"] for run in (base, again)]
    assert sum(mces) / 2 == pytest.approx(1.0)
    assert base["hard"]["classes"] == 2
    assert base["foreign"]["chance"] == pytest.approx(1 / 21)
    names = {figure["file"] for figure in measures["figures"]}
    assert names == {f"figures/{path.name}" for path in (tmp_path / "out" / "figures").iterdir()}
    assert names >= {
        f"figures/{name}.png" for name in ("jigsaw", "corruptions", "projection-pca", "energy", "attention-0")
    }
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("data:image/png;base64,") == len(names)
    assert "Consistency" in page
    assert "Diff. Norm." in (tmp_path / "out" / "measures.md").read_text()
    lines = list(csv.DictReader((tmp_path / "out" / "measures.csv").read_text().splitlines()))
    assert float(lines[2]["consistency@0.3"]) == mjp["jigsaw"]["points"][1]["consistency"]["mean"]

    code, _, err = fedsim_measure(f"runs=[{runs[0]}]", f"run_dir={tmp_path}/out")
    assert code == 2
    assert "choose a new folder" in err


def test_the_same_numbers_again(fedsim_measure, write_run, tmp_path, no_figures):
    run, found = write_run("a", MJP), []
    for name in ("one", "two"):
        arguments = [*SMALL, f"runs=[{run}]", f"run_dir={tmp_path}/{name}"]
        assert fedsim_measure(*arguments, "measure.corruptions.names=[snow]")[0] == 0
        found.append(json.loads((tmp_path / name / "measures.json").read_text())["runs"])
    assert found[0] == found[1]
    corruptions = found[0][0]["corruptions"]
    assert 0 < corruptions["mean_error"] <= 1
    assert corruptions["mce"] is None, "without a reference there is a mean error and no mCE"
    (line,) = csv.DictReader((tmp_path / "one" / "measures.csv").read_text().splitlines())
    assert "corruptions_mce" not in line
    assert float(line["corruptions_mean_error"]) == corruptions["mean_error"]
    table = (tmp_path / "one" / "measures.md").read_text().split("mCE (%)")[1]
    assert f"| – | {100 * corruptions['mean_error']:.1f}" in table


def test_a_model_that_comes_from_no_run(fedsim_measure, tmp_path):
    code, _, err = fedsim_measure(*SMALL, "model=mlp", "data=digits", f"run_dir={tmp_path}/out")
    assert code == 0, err
    (run,) = json.loads((tmp_path / "out" / "measures.json").read_text())["runs"]
    assert run["jigsaw"] is None
    assert any("measure.patch_size" in note for note in run["notes"])
    assert "Not measured" in (tmp_path / "out" / "report.html").read_text()


def test_a_run_of_fedsim_itself(fedsim_measure, command, tmp_path, no_figures):
    arguments = ["num_clients=2", "num_rounds=2", "evaluate_every=2", "simulation=inline", "attack=[]", "tracker=[]"]
    code, _, err = command("fedsim", *arguments, "defense=[mjp]", f"run_dir={tmp_path}/run")
    assert code == 0, err
    reported = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    settings = [f"runs=[{tmp_path}/run]", f"run_dir={tmp_path}/out", "measure.num_images=null"]
    code, _, err = fedsim_measure(*SMALL, *settings)
    assert code == 0, err
    (run,) = json.loads((tmp_path / "out" / "measures.json").read_text())["runs"]
    assert run["top1"] == pytest.approx(reported[-1]["accuracy"])
    assert 1 <= run["classes_named"] <= 10
    assert run["round"] == 2


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["runs=[]", "runs=[DIR,DIR]"]),
        (["runs=[nowhere]"], ["runs=nowhere", "config.yaml"]),
        (["measure.ratio=[0.1]"], ["measure.ratio", "Did you mean 'measure.ratios'"]),
        (["device=cuda"], ["device=cuda", "no CUDA device"]),
        (["model=vit_nano"], ["data=None", "data=imagefolder"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) and value else None,
)
def test_one_clear_line(fedsim_measure, tmp_path, monkeypatch, arguments, parts):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, out, err = fedsim_measure(f"run_dir={tmp_path}/out", *arguments)
    assert code == 2
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert all(part in lines[0] for part in parts), lines[0]
    assert "Traceback" not in out + err
    assert not (tmp_path / "out" / "measures.json").exists()


def test_a_reference_that_is_none_of_the_runs(fedsim_measure, write_run, tmp_path):
    settings = ["measure.corruptions.names=[fog]", "measure.corruptions.reference=vgg", f"run_dir={tmp_path}/out"]
    code, _, err = fedsim_measure(f"runs=[{write_run('a')}]", *settings)
    assert code == 2
    assert "reference=vgg: must be null or one of alexnet, no defense" in err


def test_alexnets_errors_are_of_other_pictures_than_digits(fedsim_measure, write_run, tmp_path):
    settings = ["measure.corruptions.names=all", "measure.corruptions.reference=alexnet", f"run_dir={tmp_path}/out"]
    code, _, err = fedsim_measure(f"runs=[{write_run('a')}]", *settings)
    assert code == 2
    assert "measure.corruptions.table=cifar: must be imagenet, beside reference=alexnet" in " ".join(err.split())


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("measure.folds=16", "measure.folds=16: must be at most 4, the number of patches of"),
        ("measure.patch_size=8", "measure.patch_size=8: must be a divisor of the pictures' 12 pixels"),
    ],
)
def test_what_a_later_run_cannot_have_is_refused_before_the_first_is_measured(
    fedsim_measure, write_run, tmp_path, monkeypatch, setting, words
):
    side = 12 if "patch_size" in setting else 4
    small = write_run("b", model={"kwargs": {"depth": 1}, "img_size": side}, seed=1)
    measured = []
    monkeypatch.setattr(measure, "measure_subject", lambda *given: measured.append(given))
    code, _, err = fedsim_measure(f"runs=[{write_run('a')},{small}]", *SMALL, setting, f"run_dir={tmp_path}/out")
    assert (code, measured) == (2, [])
    assert words in " ".join(err.split())
    assert not (tmp_path / "out").exists()


def test_help_teaches(fedsim_measure):
    code, out, _ = fedsim_measure("--help")
    assert code == 0
    for word in ("runs=[DIR,DIR]", "measure.ratios", "measure.corruptions.names", "--cfg job", "run_dir"):
        assert word in out, word


@pytest.mark.parametrize("name", ["matrix.json", "content.json"])
def test_a_folder_of_another_command_stays_as_it_is(fedsim_measure, write_run, tmp_path, name):
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("{}")
    code, _, err = fedsim_measure(*SMALL, f"runs=[{write_run('a')}]", f"run_dir={out}")
    assert code == 2
    assert "choose a new folder" in err
    assert not (out / "config.yaml").exists()


def test_a_full_disk_is_one_line(fedsim_measure, write_run, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(measure, "draw_all", full)
    code, _, err = fedsim_measure(*SMALL, f"runs=[{write_run('a')}]", f"run_dir={tmp_path}/out")
    assert code == 2
    assert err.splitlines()[-1] == f"error: {tmp_path}/out: No space left on device"


def test_a_page_that_finds_no_room_is_made_later(fedsim_measure, write_run, tmp_path, no_figures, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(measure, "measure_subject", lambda *_: {})
    monkeypatch.setattr(measure, "build_measures_page", full)
    out = tmp_path / "out"
    code, _, err = fedsim_measure(*SMALL, f"runs=[{write_run('a')}]", f"run_dir={out}")
    assert code == 2
    kept = "what was measured is kept. With more room, fedsim-report"
    assert err.splitlines()[-1] == f"error: {out}: No space left on device; {kept} {out} makes its page"
    assert (out / "measures.json").is_file()


def test_a_reference_without_errors_costs_the_mce_alone(fedsim_measure, write_run, tmp_path, no_figures, monkeypatch):
    def without_errors(members, plan, batch_size, step):
        return [{"fog": [0.0]} for _ in members]

    monkeypatch.setattr(measure, "corruption_errors", without_errors)
    wanted = ["measure.corruptions.names=[fog]", "measure.corruptions.reference=base", "names=[base]"]
    code, _, err = fedsim_measure(*SMALL, f"runs=[{write_run('a')}]", *wanted, f"run_dir={tmp_path}/out")
    assert code == 0, err
    (run,) = json.loads((tmp_path / "out" / "measures.json").read_text())["runs"]
    assert (run["corruptions"]["mce"], run["corruptions"]["mean_error"]) == (None, 0.0)
    assert run["notes"] == ["mCE: base cannot be the reference: no reference error above zero for fog"]
    assert "cannot be the reference" in (tmp_path / "out" / "report.html").read_text()
