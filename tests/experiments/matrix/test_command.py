"""The leakage matrix: what its cells say, what a second call repeats (nothing), and what is refused."""

import csv
import json
import statistics
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import yaml
from matplotlib.figure import Figure

from experiments.cli import validation
from experiments.engine import setup
from experiments.engine.choice import on_engine
from experiments.matrix import command as leakage_matrix
from experiments.matrix import rows as matrix_rows
from experiments.matrix import units as matrix_units
from experiments.run import command as run_command
from fedsim.errors import ConfigError
from fedsim.report.matrix import figures as matrix_figures
from fedsim.report.matrix import files as matrix_files
from fedsim.report.run.images.counts import Counts
from fedsim.simulation import placement
from fedsim.storage.durable import locked
from server.attack_queue.results import ResultWriter
from server.resume.points import ResumePoints
from tests.experiments.run_files import rows
from tests.support.federation import settings as composed

FEW = ["data.test_fraction=0.05", "data.auxiliary_fraction=0.05"]
SMALL = ["num_clients=3", "num_rounds=1", "client.batch_size=4", "audit.num_images=2", "simulation=inline", *FEW]
ROWS = ["matrix.every_defense=false", "matrix.rows=[none,noise_1e-1]", "matrix.columns=[patch_gradient,labels]"]


@pytest.fixture
def matrix(command, tmp_path, request, monkeypatch):
    """A small matrix as a user calls it; gives its folder, output and errors, and checks the exit code."""
    if "plots" not in request.fixturenames:  # as `command` does; tests/fedsim/report draws and reads them
        monkeypatch.setattr(matrix_files, "_write_images", lambda *_: [])
        monkeypatch.setattr(matrix_figures, "_scatter", lambda *_: Figure())

    def call(*arguments, folder=None, code=0):
        root = folder or tmp_path / "matrix"
        left, out, err = command("fedsim-matrix", f"run_dir={root}", *SMALL, *ROWS, *arguments)
        assert left == code, err
        return root, out, err

    return call


@pytest.fixture
def computed(monkeypatch):
    """Counts what is computed: trainings by folder, results by update, attack and folder."""
    counts = Counter()
    train, write = matrix_units.run_federated, ResultWriter.write

    def counted_training(config, root):
        counts[f"{root.parent.name}/{root.name}"] += 1
        train(config, root)

    def counted_result(self, job, *others):
        folder = self._folder.root
        counts[f"{folder.parent.name}/{folder.name}/{job.attack}/{job.client}"] += 1
        write(self, job, *others)

    monkeypatch.setattr(matrix_units, "run_federated", counted_training)
    monkeypatch.setattr(ResultWriter, "write", counted_result)
    return counts


def cells(root):
    content = json.loads((root / "matrix.json").read_text())
    return {(row["name"], cell["state"], cell["attack"]): cell for row in content["rows"] for cell in row["cells"]}


@pytest.fixture
def whole(matrix, known, tmp_path):
    """The numbers of the matrix that is computed in this process and in one go, once."""

    def call():
        if not known:
            root, *_ = matrix(folder=tmp_path / "whole")
            known.append(numbers(root))
        return known[0]

    return call


@pytest.fixture(scope="module")
def known():
    return []


def numbers(root):
    """Everything but times."""
    with (root / "matrix.csv").open(newline="") as file:
        return [{k: v for k, v in line.items() if "seconds" not in k} for line in csv.DictReader(file)]


def test_cells_hold_what_the_runs_on_their_own_give(matrix, command, plots, tmp_path):
    refused = "+matrix.defenses.refused=[gradient_clip,'gradient_clip.max_norm=-1']"
    broken = (
        "+matrix.defenses.broken=['+defense.broken._target_=tests.experiments.faulty_defense.FailsAtBatch',"
        "'+defense.broken.at=1','client.batch_size=1']"
    )
    chosen = "matrix.rows=[refused,broken,none,noise_1e-1,gradient_clip]"  # the last is no row but an option
    root, out, _ = matrix(refused, broken, chosen)
    found = cells(root)
    command(
        "fedsim-audit",
        f"run_dir={tmp_path}/audit",
        *FEW,
        "data=digits",
        "model=vit_nano",
        "simulation=inline",
        "defense=[gradient_noise]",
        "defense.gradient_noise.relative_norm=0.1",
        "attack=[patch_gradient,labels]",
        "audit.num_images=2",
    )
    results = [row for row in rows(tmp_path / "audit", "attacks") if row["attack"] == "patch_gradient"]
    expected = statistics.fmean(image["private_psnr"] for row in results for image in row["images"])
    cell = found["noise_1e-1", "initial", "patch_gradient"]
    assert cell["private_psnr"] == pytest.approx(expected, abs=1e-9)
    assert cell["leakage"] < 20 < found["none", "initial", "patch_gradient"]["leakage"]
    assert found["none", "initial", "labels"]["label_exact"] == 1.0
    assert found["gradient_clip", "initial", "patch_gradient"]["leakage"] > 40
    assert 5 < cell["baseline"] < 20
    content = {row["name"]: row for row in json.loads((root / "matrix.json").read_text())["rows"]}
    accuracy = rows(root / "rows" / "none" / "training-0", "metrics")[-1]["accuracy"]
    assert content["none"]["accuracy"] == accuracy
    assert content["none"]["strongest"] == "patch_gradient"
    levels = [content[name]["level"] for name in ("none", "noise_1e-1", "gradient_clip", "refused", "broken")]
    assert json.loads((root / "rows" / "none" / "audit-initial" / matrix_units.ASKED).read_text())["copies"] == 1
    assert levels == ["broken", "open", "broken", "not tested", "open"]  # one image of the last, without a certificate
    assert Counts(**content["none"]["counts"]) == Counts(
        certified=2, recognisable=2, images=2, ended=2, updates=2, leaking=2, ahead=2, apart=2
    )
    assert Counts(**content["broken"]["counts"]) == Counts(
        recognisable=1, images=1, ended=1, failed=1, updates=1, leaking=1, ahead=1, apart=1
    )
    assert (
        "row none (audit, initial model): broken, 2 of 2 recognisable, without the update 0 of 2, 2 certified; " in out
    )
    assert "Not tested: 1 of 1 defense (refused)." in out
    assert "Few observed images: 1 to 2, each up to 100 % of all" in out
    stages = content["refused"]["trainings"]["0"], content["refused"]["audits"]["initial"]
    assert all(stage["status"] == "refused" and "max_norm=-1" in stage["reason"] for stage in stages)
    assert found["broken", "initial", "patch_gradient"]["failed"] == 1
    assert found["broken", "initial", "patch_gradient"]["status"] == "failed"
    assert (content["broken"]["leakage"], content["broken"]["pareto"]) == (None, False)
    assert content["noise_1e-1"]["leakage"] >= cell["baseline"]
    page = (root / "matrix.html").read_text()
    assert "gradient_clip.max_norm=-1" in page
    assert "patch_gradient (initial) failed on 1 of 2" in page
    assert "rows/none/audit-initial/report.html" in page
    assert "<b>" not in page
    assert out.strip().splitlines()[-1] == str(root)


def test_rows_compare_where_updates_hold_as_many_pictures_and_accuracy_is_of_what_was_audited(matrix):
    """The gate shares no update of one picture and any of four: trained with four, nothing was withheld."""
    own = ["+matrix.defenses.gate=[leakage_gate]", '+matrix.defenses.lora=["finetune=lora"]']
    rows = "matrix.rows=[lora,none,none_batch_2,gate,leakage_gate]"
    root, *_ = matrix(*own, rows, "matrix.columns=[patch_gradient]")
    content = json.loads((root / "matrix.json").read_text())
    found = {row["name"]: row for row in content["rows"]}
    assert {name: row["batch"] for name, row in found.items()} == {
        "lora": 1,
        "none": 1,
        "none_batch_2": 2,
        "gate": 1,
        "leakage_gate": 1,
    }
    assert {name for name, row in found.items() if not row["defended"]} == {"none", "none_batch_2"}
    assert found["gate"]["measured"]["leakage_gate_withheld"] == 0.0
    assert "trained with 4, audited with 1 images" in found["gate"]["mismatch"]
    assert found["leakage_gate"]["measured"]["leakage_gate_withheld"] == 1.0
    assert found["leakage_gate"]["mismatch"] == ""
    assert not any(row["pareto"] for row in found.values())  # nothing was shared that an attack could be tested on
    assert [found[name]["level"] for name in ("none", "gate", "leakage_gate")] == ["broken", "not tested", "not tested"]
    assert content["test_pictures"] == 90
    assert content["columns"][0]["name"] == "patch_gradient"
    assert "trained with 4, audited with 1 images" in (root / "matrix.html").read_text()


def test_killed_between_any_two_results_nothing_finished_is_repeated(matrix, whole, computed, monkeypatch):
    """An interruption instead of each third result, three calls long; then one that ends and one with nothing to do."""
    counted = ResultWriter.write
    written = []

    def interrupted(self, *arguments):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(arguments)
        counted(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(ResultWriter, "write", interrupted)
        for _ in range(3):
            written.clear()
            matrix(code=130)
    root, *_ = matrix()
    assert set(computed.values()) == {1}
    assert len(computed) == 2 + 2 * 2 * 2
    first = numbers(root)
    computed.clear()
    _, out, _ = matrix()
    assert not computed
    assert "4 of 4 runs were finished earlier" in out
    assert numbers(root) == first
    assert first == whole()


def interrupted_after(rounds, monkeypatch):
    """Trainings whose rounds each leave a resume point, the first interrupted behind so many; counts all rounds."""
    after, ended = ResumePoints.after_round, []

    def counted(self, *arguments):
        after(self, *arguments)
        ended.append(arguments)
        if len(ended) == rounds:
            raise KeyboardInterrupt

    monkeypatch.setattr(matrix_rows, "RESUME_EVERY", 0.0)
    monkeypatch.setattr(ResumePoints, "after_round", counted)
    return ended


def test_a_training_that_did_not_finish_goes_on(matrix, tmp_path, monkeypatch):
    """From its last resume point, to the same numbers; with none that is whole from its start."""
    few = ["matrix.rows=[none]", "num_rounds=3"]
    whole, *_ = matrix(*few, folder=tmp_path / "at_once")
    ended = interrupted_after(2, monkeypatch)
    root, *_ = matrix(*few, code=130)
    matrix(*few)
    assert len(ended) == 3
    assert numbers(root) == numbers(whole)

    ended.clear()
    broken, *_ = matrix(*few, folder=tmp_path / "broken", code=130)
    for manifest in (broken / "rows" / "none" / "training-0" / "resume").glob("round-*/manifest.json"):
        manifest.unlink()
    matrix(*few, folder=broken)
    assert len(ended) == 2 + 3
    assert numbers(broken) == numbers(whole)


def test_a_training_that_ended_without_its_seal_is_done_again(matrix, computed):
    """Nothing tells of which images it was."""
    root, *_ = matrix("matrix.rows=[none]")
    before = json.loads((root / "matrix.json").read_text())["rows"][0]["accuracy"]
    folder = root / "rows" / "none" / "training-0"
    (folder / matrix_units.SEAL).unlink()
    (folder / "metrics.jsonl").write_text('{"round": 0, "accuracy": 0.99, "failures": []}\n')
    computed.clear()
    matrix("matrix.rows=[none]")
    assert dict(computed) == {"none/training-0": 1}
    assert json.loads((root / "matrix.json").read_text())["rows"][0]["accuracy"] == before


def test_no_room_for_a_resume_point_keeps_those_that_there_are(matrix, monkeypatch):
    few = ["matrix.rows=[none]", "num_rounds=2"]
    interrupted_after(1, monkeypatch)
    root, *_ = matrix(*few, code=130)
    points = root / "rows" / "none" / "training-0" / "resume"

    def full(*_):
        raise ConfigError("run_dir", root, "on a disk with room")

    monkeypatch.setattr(run_command, "check_room", full)
    matrix(*few, code=2)
    assert list(points.glob("*/manifest.json"))


def test_a_training_is_not_gone_on_with_by_other_settings(matrix, monkeypatch):
    few = ["matrix.rows=[none]", "num_rounds=2"]
    ended = interrupted_after(1, monkeypatch)
    matrix(*few, code=130)
    matrix(*few, "client.optimizer.lr=0.02")
    assert len(ended) == 1 + 2


def test_a_unit_has_as_long_as_its_own_images_and_rounds_ask_for(tmp_path):
    def limit(kind, **own):
        unit = matrix_units.MatrixRun("none", kind, "0", tmp_path, {**configs[kind], **own})
        return leakage_matrix._limit(SimpleNamespace(config=SimpleNamespace(round_timeout=2.0, num_rounds=3)), unit)

    configs = {
        matrix_units.TRAINING: {},
        matrix_units.AUDIT: composed("audit", "attack=[labels]", "simulation.attack_timeout=10"),
    }
    audit = {**configs[matrix_units.AUDIT]["audit"], "select": list(range(200))}
    assert [limit(matrix_units.TRAINING), limit(matrix_units.TRAINING, num_rounds=5)] == [6.0, 10.0]
    assert limit(matrix_units.TRAINING, num_rounds=2, round_timeout=20.0) == 40.0
    assert [limit(matrix_units.AUDIT), limit(matrix_units.AUDIT, audit=audit)] == [160.0, 2000.0]


def test_rows_and_columns_are_added_to_what_there_is_and_other_settings_are_refused(matrix, computed):
    root, *_ = matrix("matrix.rows=[none]", "matrix.columns=[labels]")
    computed.clear()
    matrix("matrix.rows=[none,noise_1e-1]", "matrix.columns=[labels,patch_gradient]")
    assert [name for name in computed if name.startswith("none")] == [
        "none/audit-initial/patch_gradient/0",
        "none/audit-initial/patch_gradient/1",
    ]
    assert len(cells(root)) == 4
    computed.clear()
    *_, err = matrix("num_rounds=2", code=2)
    assert "num_rounds=1, not 2" in err
    *_, err = matrix("matrix.columns=[labels]", "matrix.attacks.labels=[labels,'labels.rule=idlg']", code=2)
    assert "matrix.attacks.labels" in err
    for unit, of in (("training-0", "public images"), ("audit-initial", "images")):
        path = root / "rows" / "none" / unit / "asked.json"
        asked = path.read_text()
        path.write_text(json.dumps(json.loads(asked) | {"content": {of: "others"}}))
        *_, err = matrix("matrix.columns=[labels]", code=2)
        assert f"error: run_dir={root}: choose a new folder, or bring back what there was: this one holds" in err
        assert err.endswith(f"results of other {of}\n")
        path.write_text(asked)
    assert not computed


def test_the_trained_model_is_attacked_too_seeds_give_a_spread_and_a_moved_folder_goes_on(matrix, computed):
    settings = ["matrix.rows=[none]", "matrix.state=both", "matrix.seeds=2"]
    root, *_ = matrix(*settings, "matrix.columns=[patch_gradient]")
    found = cells(root)
    assert {state for _, state, _ in found} == {"initial", "trained"}
    config = (root / "rows" / "none" / "audit-trained" / "config.yaml").read_text()
    assert "training-0/checkpoints/round-00001.safetensors" in config
    content = json.loads((root / "matrix.json").read_text())["rows"][0]
    assert len(content["accuracies"]) == 2
    assert content["spread"] is not None
    moved = root.rename(root.with_name("moved"))
    computed.clear()
    matrix(*settings, "matrix.columns=[labels,patch_gradient]", folder=moved)
    assert set(computed) == {
        f"none/audit-{state}/labels/{update}" for state in ("initial", "trained") for update in (0, 1)
    }


def test_two_processes_are_not_at_work_in_one_folder(matrix, computed, tmp_path):
    (tmp_path / "matrix").mkdir()
    with locked(tmp_path / "matrix"):
        _, _, err = matrix(code=2)
    assert "another process is at work in this folder" in err
    assert not computed


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (["matrix.state=final"], ["matrix.state=final", "initial, trained, both"]),
        (["matrix.seeds=0"], ["matrix.seeds=0"]),
        (["matrix.rows=[nonee]"], ["matrix.rows=nonee", "Did you mean 'none'"]),
        (["matrix.columns=[label]"], ["matrix.columns=label", "Did you mean 'labels'"]),
        (["defense=[mjp]"], ["matrix.defenses names them"]),
        (["+matrix.defenses.x=[mjpp]", "matrix.rows=[x]"], ["matrix.defenses.x=mjpp", "mjpp"]),
        (["+matrix.defenses.x=[mjp,'mjp.ration=1']", "matrix.rows=[x]"], ["matrix.defenses.x", "mjp.ration"]),
        (["+matrix.defenses.x=['client.batch_size=0']", "matrix.rows=[none,x]"], ["matrix.defenses.x", "batch_size=0"]),
        (["+matrix.defenses.x=[half,'num_rounds=0']", "matrix.rows=[none,x]"], ["matrix.defenses.x", "num_rounds=0"]),
        (["+matrix.attacks.x=[]", "matrix.columns=[x]"], ["matrix.attacks.x", "one option"]),
        (["+matrix.defenses.x=5", "matrix.rows=[x]"], ["matrix.defenses.x=5", "a list"]),
        (["+matrix.defenses.x=['seed=3']"], ["matrix.defenses.x=seed=3", "seed is set for the whole matrix"]),
        (["+matrix.defenses.x=[half,'+attack.own.y=1']"], ["matrix.defenses.x=+attack.own.y=1", "no row has its own"]),
        (
            ["+matrix.defenses.x=['simulation.threads=2']"],
            ["matrix.defenses.x=simulation.threads=2", "simulation is set"],
        ),
        (
            ["matrix.attacks.labels=[labels,'audit.batch_size=4']"],
            ["matrix.attacks.labels=audit.batch_size=4", "labels.KEY"],
        ),
        (["matrix.attacks.labels=[labels,'seed=3']"], ["matrix.attacks.labels=seed=3"]),
        (["matrix.attacks.labels=[labels,'client.share=delta']"], ["matrix.attacks.labels=client.share=delta"]),
        (["matrix.attacks.labels=[labels,'labels.rule=llgg']"], ["attack.labels.rule=llgg"]),
        (["num_clients=100000"], ["100000"]),
        (["audit.num_images=100000"], ["audit.num_images=100000"]),
        (["matrix.rows=[none_batch_4]"], ["audit.num_images=2", "a multiple of audit.batch_size=4, for example 4"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_one_clear_line_before_anything_starts(matrix, computed, settings, parts):
    root, _, err = matrix(*settings, code=2)
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert all(part in lines[0] for part in parts), lines[0]
    assert not computed
    assert not (root / "matrix.json").exists()


def test_ray_gives_the_numbers_of_the_inline_matrix(matrix, whole, ray_on_this_machine, tmp_path):
    settings = ["simulation=ray", "simulation.workers=2", "matrix.state=both"]
    on_ray, *_ = matrix(*settings, folder=tmp_path / "ray")
    shared = [line for line in numbers(on_ray) if line["state"] == "initial"]
    assert [without(line) for line in shared] == [without(line) for line in whole()]


def test_one_engine_is_chosen_for_all_runs(matrix):
    root, out, _ = matrix("simulation=auto", "matrix.rows=[none]", "matrix.columns=[labels]")
    assert out.splitlines()[0] == "in this process: 2 runs; simulation=ray uses workers"
    recorded = [yaml.safe_load(path.read_text()) for path in root.glob("rows/*/*/config.yaml")]
    assert [config["simulation"]["engine"] for config in recorded] == ["inline"] * 2


def test_a_row_keeps_the_engine_that_it_names(matrix, monkeypatch):
    monkeypatch.setattr(leakage_matrix, "_with_engine", lambda config, *_: on_engine(config, "ray"))
    named = ['+matrix.defenses.here=["simulation=inline"]', '+matrix.defenses.there=["simulation=ray"]']
    some = ["matrix.rows=[none,here,there]", "matrix.columns=[labels]", "matrix.parallel=false"]
    planned = []
    monkeypatch.setattr(leakage_matrix, "_run", planned.append)
    matrix("simulation=auto", *named, *some)
    engines = {unit.row: unit.config["simulation"]["engine"] for unit in planned[0].units}
    assert engines == {"none": "ray", "here": "inline", "there": "ray"}


def test_runs_one_after_the_other_share_no_ray(matrix, monkeypatch):
    def no_engine(*_, **__):
        raise AssertionError("it would be of another size than a row may ask for")

    monkeypatch.setattr(leakage_matrix, "engine", no_engine)
    monkeypatch.setattr(leakage_matrix, "run_unit", lambda _: matrix_units.UnitEnd("failed", "not run"))
    _, _, err = matrix("simulation=ray", "matrix.parallel=false", "matrix.rows=[none]", code=2)
    assert "failed, and tried again" in err


def test_what_no_rows_own_ray_ever_has_is_refused_at_once(matrix, computed, monkeypatch):
    for module in (placement, validation):
        monkeypatch.setattr(module, "living_nodes", lambda: [placement.Node("here", {"CPU": 2.0})])
    monkeypatch.setattr(setup, "ray_cluster", lambda *_, **__: nullcontext())
    moon = ["simulation=ray", "+simulation.resources={moon: 1}"]
    root, _, err = matrix(*moon, "matrix.parallel=false", "matrix.rows=[none]", code=2)
    assert "error: simulation.resources={'moon': 1}: must be what there is" in err
    assert not computed
    assert not (root / "matrix.json").exists()


def test_rows_of_the_cpu_are_no_rows_of_workers_with_a_gpu(tmp_path):
    simulation = {"engine": "ray", "threads": 2, "num_gpus": 0}
    config = {"simulation": simulation, "client": {"device": "cpu"}, "attack": {}, "audit": {"victims": 1}}
    config |= {"data": {}, "model": {"checkpoint": None}}
    folder = tmp_path / "m" / "rows" / "none" / "a"
    folder.mkdir(parents=True)

    def unit(device, num_gpus):
        changed = {"client": {"device": device}, "simulation": {**simulation, "num_gpus": num_gpus}}
        return matrix_units.MatrixRun("none", matrix_units.AUDIT, "initial", folder, {**config, **changed})

    recorded = (("cpu", 0, [("cuda", 1)], "cpu, not cuda"), ("cuda", 1, [("cpu", 0)], "cuda, not cpu"))
    for device, gpus, others, told in recorded:
        asked = {"settings": unit(device, gpus).settings, "gpus": bool(gpus), "attacks": {}}
        (folder / matrix_units.ASKED).write_text(json.dumps(asked))
        matrix_units.check_unit(unit(device, gpus))
        for other in others:
            with pytest.raises(ConfigError, match=rf"client\.device={told}"):
                matrix_units.check_unit(unit(*other))
    earlier = {"settings": unit("auto", 0).settings, "attacks": {}}
    (folder / matrix_units.ASKED).write_text(json.dumps(earlier))
    matrix_units.check_unit(unit("cpu", 0))
    (folder / matrix_units.ASKED).write_text(json.dumps(earlier | {"settings": unit("auto", 1).settings, "gpus": True}))
    matrix_units.check_unit(unit("cuda", 1))


@pytest.mark.parametrize("base", ["inline", "ray"])
def test_a_row_that_names_this_process_has_its_gpu_wherever_the_others_are_but_goes_on_where_it_began(
    base, tmp_path, monkeypatch
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    config = {"simulation": {"engine": "inline", "num_gpus": 0}, "client": {"device": "auto"}}
    unit = matrix_units.MatrixRun("none", matrix_units.AUDIT, "initial", tmp_path, config)
    assert unit.on(base).config["client"] == {"device": "cuda"}
    (tmp_path / matrix_units.ASKED).write_text(json.dumps({"settings": {"client": {"device": "cpu"}}}))
    assert unit.on(base).config["client"] == {"device": "cpu"}


def without(line):
    """The front depends on the states that are looked at."""
    return {key: value for key, value in line.items() if key != "pareto"}


def test_sigkill_in_the_middle(mortal, matrix, whole, tmp_path):
    """A call in a process of its own is killed after its first sealed run; the next one repeats no finished run."""
    root = tmp_path / "killed"
    written = "server.attack_queue.results:ResultWriter.write"
    mortal.run(f"run_dir={root}", *SMALL, *ROWS, at=written, call=3, command="fedsim-matrix")
    before = {path: path.stat().st_mtime_ns for path in root.glob("rows/*/*/sealed.json")}
    assert 0 < len(before) < 4
    matrix(folder=root)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(list(root.glob("rows/*/*/sealed.json"))) == 4
    lines = [(r["observation"], r["attack"]) for r in rows(root / "rows" / "none" / "audit-initial", "attacks")]
    assert len(lines) == len(set(lines)) == 4
    assert numbers(root) == whole()


def test_workers_of_a_cluster_find_relative_paths_and_the_folder_stays_the_same_matrix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "g.safetensors").touch()
    config = {
        "data": {"path": "pictures"},
        "model": {"checkpoint": "g.safetensors"},
        "attack": {"gias": {"generator": {"checkpoint": "g.safetensors"}}},
        "ray": {"address": "10.0.0.1:6379"},
        "simulation": {"engine": "ray", "threads": 2, "num_gpus": 0},
        "client": {"device": "auto"},
        "audit": {"victims": 1},
    }
    unit = matrix_units.MatrixRun(
        "none", matrix_units.AUDIT, "untrained", tmp_path / "m" / "rows" / "none" / "a", config
    )
    unit = unit.on("ray")
    sent = leakage_matrix._inline(unit, config["simulation"])
    assert sent.config["simulation"] == {"engine": "inline", "threads": 2, "num_gpus": 0}
    assert sent.config["client"] == {"device": "cpu"}
    assert sent.config["data"] == {"path": str(tmp_path / "pictures")}
    assert sent.config["model"] == {"checkpoint": str(tmp_path / "g.safetensors")}
    asked = {"settings": sent.settings, "attacks": sent.config["attack"]}
    unit.folder.mkdir(parents=True)
    (unit.folder / matrix_units.ASKED).write_text(json.dumps(asked))
    matrix_units.check_unit(unit)
    here = matrix_units.MatrixRun("none", unit.kind, unit.label, unit.folder, config | {"ray": {"address": None}})
    assert leakage_matrix._inline(here, config["simulation"]).config["data"] == {"path": "pictures"}


def test_a_trained_model_of_a_defense_that_adds_parameters_is_audited(matrix):
    root, _, _ = matrix("matrix.state=trained", "matrix.rows=[mjp,no_pe]", "matrix.columns=[labels]")
    assert {cell["status"] for cell in cells(root).values()} == {"done"}


def test_the_folder_of_a_run_is_refused(command, tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    code, _, err = command("fedsim-matrix", f"run_dir={tmp_path}")
    assert code == 2
    assert f"error: run_dir={tmp_path}: choose a new folder, this one holds a run and no matrix" in err
    assert not (tmp_path / "rows").exists()


def test_a_checkpoint_that_cannot_be_read_is_a_failure(matrix, monkeypatch):
    def unread(config):
        raise ConfigError("model.checkpoint", "x", "a state dict that fits the model")

    monkeypatch.setattr(matrix_units, "prepare", unread)
    _, _, err = matrix("matrix.rows=[none]", "matrix.state=trained", code=2)
    assert "error: failed, and tried again by the next call: row none (audit, trained model)" in err


def test_a_defense_that_spoils_its_updates_is_a_failure_and_no_refusal(matrix):
    spoils = (
        "+matrix.defenses.spoils=['+defense.spoils._target_=tests.experiments.faulty_defense.Spoils',"
        "'+defense.spoils.how=flat']"
    )
    root, _, err = matrix(spoils, "matrix.rows=[spoils]", "matrix.columns=[patch_gradient,labels]", code=2)
    assert (root / "matrix.html").is_file()
    (row,) = json.loads((root / "matrix.json").read_text())["rows"]
    stage = row["audits"]["initial"]
    assert stage["status"] == "failed"
    assert "tensor cls_token has the shape (64), the model's has (1, 1, 64)" in stage["reason"]
    assert "defense=[spoils]" in stage["reason"]
    assert row["cells"] == []  # the page then shows what the stage says
    assert (row["leakage"], row["pareto"]) == (None, False)
    assert "row spoils (audit, initial model)" in err
