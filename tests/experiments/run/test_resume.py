"""A run killed at any moment and resumed leaves what the uninterrupted run leaves.

Where the moment is the subject, the folder is copied at it: what a kill leaves is what is on disk.
"""

import fcntl
import functools
import importlib
import inspect
import itertools
import json
import shutil
import sys
from dataclasses import replace

import pytest
import torch
import yaml
from flwr.app import ArrayRecord
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from experiments.cli.call import run_command
from experiments.commands.stage import CommandStage
from experiments.engine.setup import prepare
from experiments.run import resumed, resuming
from experiments.run.command import _kept_bytes
from fedsim.errors import ConfigError
from fedsim.report import render
from fedsim.simulation import SimulatedGrid
from fedsim.storage.json_objects import DamagedFileError
from fedsim.storage.run_folder import RunFolder
from fedsim.storage.sealed import ARRAYS, SealedStates
from server.resume.points import ResumePoint
from tests.experiments.run_files import rows
from tests.support.federation import settings

SMALL = [
    "num_clients=3",
    "num_rounds=4",
    "evaluate_every=1",
    "checkpoint_every=1",
    "observe.every=2",
    "observe.clients=1",
    "resume_every_seconds=0",
    "tracker=[]",
    "data.auxiliary_fraction=0.85",
    "data.test_fraction=0.05",
]
WEIGHTS = ["client.batch_size=64", "client.optimizer.lr=0.05", "attack=[labels]"]
SCHEDULER = "strategy.scheduler={_target_: torch.optim.lr_scheduler.StepLR, step_size: 2, gamma: 0.5}"
SETTINGS = {
    "fedsgd": ["strategy.optimizer.lr=0.01", SCHEDULER],
    "fedadam": [
        "strategy=fedadam",
        "strategy.fraction_train=0.7",
        "strategy.fraction_evaluate=1.0",
        "defense=[topk]",
        *WEIGHTS,
    ],
}

TRAINS = "clients.app:ClientRuntime.train"
"""Three times a round."""
SEALS = "fedsim.storage.sealed:file_sha256"
"""Twice a point: arrays are written, what is not in arrays, then the manifest."""
POINT = "server.resume.points:ResumePoints.after_round"
APPENDS = "fedsim.storage.json_lines:append_whole"
"""Metrics and timings of round 0, two results of attacks, metrics and timings of round 1, the same of round 2 …"""
MOMENTS = {
    "in a round": (TRAINS, 8, "before"),
    "while a resume point is written": (SEALS, 4, "after"),
    "between a round and its resume point": (POINT, 2, "before"),
    "in a line of the metrics": (APPENDS, 9, "half"),
    "in a line of the attacks": (APPENDS, 8, "half"),
    "between two attacks": ("server.attack_queue.results:ResultWriter.write", 3, "after"),
    "between a picture and its line": ("server.attack_queue.results:save_png", 3, "after"),
    "after the last round": (POINT, 4, "after"),
    "before the report": ("fedsim.report.render:_page", 1, "before"),
}
AFTER_ROUND_3 = (POINT, 3, "after")


@pytest.fixture(scope="module")
def moments(tmp_path_factory):
    """An uninterrupted run, and copies of its folder, by moment."""
    root = tmp_path_factory.mktemp("moments")
    folder = root / "run"
    with pytest.MonkeyPatch.context() as patch:
        # The tests' type checker draws from the generator that Flower samples with, where it checks a simulated Grid.
        patch.setattr(SimulatedGrid, "get_node_ids", inspect.unwrap(SimulatedGrid.get_node_ids))
        patch.setattr(render, "_page", lambda run, judged: "")
        for moment, (at, call, how) in {**MOMENTS, AFTER_ROUND_3: AFTER_ROUND_3}.items():
            copy_at(patch, folder, root / f"copy-{hash(moment)}", at, call, how)
        settings = ["simulation=inline", *SMALL, *SETTINGS["fedsgd"]]
        patch.setattr(sys, "argv", ["fedsim", *settings, f"run_dir={folder}"])
        patch.setattr(sys, "path", list(sys.path))
        run_command(CommandStage("fedsim"))
    return folder, {moment: root / f"copy-{hash(moment)}" for moment in (*MOMENTS, AFTER_ROUND_3)}


def copy_at(patch, folder, copy, at, call, how):
    """Before the nth call of a function, after it, or `half`: with half of what it is to append."""
    module, _, path = at.partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    original, calls = getattr(owner, name), itertools.count(1)

    @functools.wraps(original)
    def replaced(*args, **kwargs):
        chosen = next(calls) == call
        if chosen and how != "after":
            shutil.copytree(folder, copy)
            if how == "half":
                file, content = args
                with (copy / file.relative_to(folder)).open("ab") as half:
                    half.write(content[: len(content) // 2])
        result = original(*args, **kwargs)
        if chosen and how == "after":
            shutil.copytree(folder, copy)
        return result

    patch.setattr(owner, name, replaced)


@pytest.fixture
def copied(moments, tmp_path):
    """`copied(moment)`: a folder as a kill at that moment leaves it."""
    return lambda moment: shutil.copytree(moments[1][moment], tmp_path / "run")


@pytest.fixture(scope="module")
def whole(mortal, moments, tmp_path_factory):
    """The uninterrupted run with these settings, made once."""
    made = {("fedsgd",): moments[0]}

    def call(name, *more):
        key = (name, *more)
        if key not in made:
            folder = tmp_path_factory.mktemp("whole") / "run"
            mortal.run("simulation=inline", *SMALL, *SETTINGS[name], *more, f"run_dir={folder}")
            made[key] = folder
        return made[key]

    return call


def results(folder):
    """Of attacks, without what a seed does not reproduce."""
    found = [{k: v for k, v in row.items() if k not in ("seconds", "attempts")} for row in rows(folder, "attacks")]
    return sorted(found, key=lambda row: (row["observation"], row["attack"]))


def files(folder):
    """Nothing of a folder that nobody wrote into."""
    return {} if not folder.exists() else {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_same(resumed, whole):
    assert (resumed / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert files(resumed / "checkpoints") == files(whole / "checkpoints")
    assert results(resumed) == results(whole)
    assert files(resumed / "reconstructions") == files(whole / "reconstructions")
    assert [row["round"] for row in rows(resumed, "timings")] == [0, 1, 2, 3, 4]
    assert not (resumed / "resume").exists()
    assert json.loads((resumed / "summary.json").read_text())["finished"] is True


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_same_bits_after_a_kill(mortal, whole, copied, moment):
    folder = copied(moment)
    assert (folder / "resume").exists()
    answer = mortal.run(f"resume={folder}")
    assert answer["out"].splitlines()[-1] == str(folder)
    assert_same(folder, whole("fedsgd"))


PAIR = ("finetune=lora", "finetune.aggregate=local_pair")


@pytest.mark.parametrize("more", [(), ("finetune=lora",), PAIR])
def test_what_server_and_clients_remember_goes_on(mortal, whole, tmp_path, more):
    """FedAdam its moments, the clients what top-k has kept back; of low-rank factors as of everything, and pairs
    of their own."""
    folder = tmp_path / "run"
    settings = ["simulation=inline", *SMALL, *SETTINGS["fedadam"], *more, f"run_dir={folder}"]
    mortal.run(*settings, at=POINT, call=1, how="after")
    mortal.run(f"resume={folder}", at=POINT, call=2, how="before")
    mortal.run(f"resume={folder}", "resume_every_seconds=3600")
    assert_same(folder, whole("fedadam", *more))


def test_a_run_killed_before_its_first_point_begins_anew(mortal, whole, tmp_path):
    folder = tmp_path / "run"
    settings = ["simulation=inline", *SMALL, *SETTINGS["fedsgd"], f"run_dir={folder}"]
    mortal.run(*settings, at=TRAINS, call=2)
    answer = mortal.run(f"resume={folder}")
    assert "begins anew" in answer["out"]
    assert_same(folder, whole("fedsgd"))


def test_a_damaged_point_is_said_and_the_one_before_it_used(mortal, whole, copied, tmp_path):
    folder = copied(AFTER_ROUND_3)
    arrays = folder / "resume" / "round-00003" / ARRAYS
    arrays.write_bytes(arrays.read_bytes()[:-5])
    every = tmp_path / "every"
    shutil.copytree(folder, every)
    answer = mortal.run(f"resume={folder}")
    assert "round-00003 is damaged" in answer["out"]
    assert "goes on after round 2; 4 results of attacks are kept" in answer["out"]
    assert_same(folder, whole("fedsgd"))
    (every / "resume" / "round-00002" / "manifest.json").unlink()
    before = files(every / "resume" / "round-00002") | {"metrics": (every / "metrics.jsonl").read_bytes()}
    answer = mortal.run(f"resume={every}", code=2)
    assert "every resume point in it is damaged" in answer["err"]
    assert files(every / "resume" / "round-00002") | {"metrics": (every / "metrics.jsonl").read_bytes()} == before


def test_a_picture_that_went_with_the_power_comes_again_and_tensorboard_has_every_number(mortal, whole, tmp_path):
    folder = tmp_path / "run"
    settings = [setting for setting in SMALL if setting != "tracker=[]"]
    mortal.run("simulation=inline", *settings, *SETTINGS["fedsgd"], f"run_dir={folder}", at=POINT, call=2)
    first, last = [row for row in rows(folder, "attacks") if row["round"] == 2]
    (folder / first["images"][0]["original"]).write_bytes(b"")
    answer = mortal.run(f"resume={folder}")
    assert "goes on after round 1; 3 results of attacks are kept" in answer["out"]
    assert last["images"][0]["original"] is None
    assert_same(folder, whole("fedsgd"))
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    losses = [(event.step, event.value) for event in events.Scalars("loss")]
    assert losses == [(row["round"], pytest.approx(row["loss"])) for row in rows(folder, "metrics")]
    assert sorted(event.step for event in events.Scalars("leakage/patch_gradient/psnr")) == [1, 2, 4]
    assert sorted(event.step for event in events.Scalars("leakage/labels/label_share")) == [1, 2, 4]


def test_attacks_that_were_pending_on_ray_are_finished_in_the_process(mortal, warm, whole, tmp_path):
    folder, marker = tmp_path / "run", tmp_path / "marker"
    slow = f"+attack.slow={{_target_:tests.server.faulty_attacks.Faulty,fault:hang,marker:{marker}}}"
    observed = ["attack=[labels]", slow, "observe.save=false"]
    settings = [*SMALL, *SETTINGS["fedsgd"], "simulation.workers=1", *observed, f"run_dir={folder}"]
    mortal.run(*settings, at=POINT, call=2, how="after", workers=warm)
    assert len(list((folder / "resume" / "pending").glob("*/*/truth.safetensors"))) == 2
    marker.touch()  # from here on the attack ends
    mortal.run(f"resume={folder}", "simulation.engine=inline")
    assert_same(folder, whole("fedsgd", *observed))


def test_a_search_goes_on_from_its_last_saved_step(mortal, whole, tmp_path):
    folder, log = tmp_path / "run", tmp_path / "steps"
    walk = "+attack.walk={{_target_:tests.server.faulty_attacks.Walk,log:{},dies_at:{}}}"
    settings = ["simulation=inline", *SMALL, *SETTINGS["fedsgd"], "attack=[]", f"run_dir={folder}"]
    mortal.run(*settings, walk.format(log, 8), code=-9)
    mortal.run(f"resume={folder}")
    steps = [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("1-0 ")]
    assert steps == [*range(1, 9), *range(7, 11)]
    assert_same(folder, whole("fedsgd", "attack=[]", walk.format(tmp_path / "whole", 0)))


def test_a_finished_run_says_so_and_builds_its_report_anew(mortal, whole):
    folder = whole("fedsgd")
    before = files(folder / "checkpoints")
    answer = mortal.run(f"resume={folder}", report=True)
    assert "this run is finished" in answer["out"]
    assert answer["out"].splitlines()[-1] == str(folder)
    assert "FedSGD" in (folder / "report.html").read_text()
    assert files(folder / "checkpoints") == before


def test_an_interrupted_run_tells_how_to_go_on(mortal, tmp_path):
    folder = tmp_path / "run"
    settings = ["simulation=inline", *SMALL, *SETTINGS["fedsgd"], f"run_dir={folder}"]
    answer = mortal.run(*settings, at=TRAINS, call=5, how="interrupt", code=130)
    assert f"fedsim resume={folder} goes on" in answer["err"]
    assert "interrupted" in answer["err"]


def test_a_disk_that_is_full_when_a_line_is_due_loses_nothing(mortal, whole, tmp_path):
    folder = tmp_path / "run"
    settings = ["simulation=inline", *SMALL, *SETTINGS["fedsgd"], f"run_dir={folder}"]
    answer = mortal.run(*settings, at=APPENDS, call=9, how="full", code=2)
    error = [line for line in answer["err"].splitlines() if line.startswith("error: ")]
    assert len(error) == 1
    assert "No space left on device" in error[0]
    assert f"fedsim resume={folder} goes on" in error[0]
    assert "Traceback" not in answer["err"]
    mortal.run(f"resume={folder}")
    assert_same(folder, whole("fedsgd"))


def test_a_disk_that_is_full_before_any_resume_point_tells_how_to_begin_anew(mortal, whole, tmp_path):
    folder = tmp_path / "run"
    settings = ["simulation=inline", *SMALL, *SETTINGS["fedsgd"], f"run_dir={folder}"]
    answer = mortal.run(*settings, at=APPENDS, call=1, how="full", code=2)
    assert f"With more room, fedsim resume={folder} begins anew there" in answer["err"]
    mortal.run(f"resume={folder}")
    assert_same(folder, whole("fedsgd"))


def test_a_disk_that_is_full_when_a_point_is_due_costs_that_point(mortal, whole, tmp_path):
    folder = tmp_path / "run"
    settings = ["simulation=inline", *SMALL, *SETTINGS["fedsgd"], f"run_dir={folder}"]
    answer = mortal.run(*settings, at="fedsim.storage.sealed:save_file", call=2, how="full", code=0)
    assert "no resume point, the run itself goes on: [Errno 28] No space left on device" in answer["out"]
    assert_same(folder, whole("fedsgd"))


@pytest.fixture
def run_folder(tmp_path):
    """As a run leaves it that was killed before its first round."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(
        "num_rounds: 4\nobserve: {}\nresume_every_seconds: 30\n"
        "ray: {address: null}\nsimulation: {workers: auto, threads: 1}\n"
    )
    return tmp_path / "run"


def test_where_a_run_goes_on_may_change_and_what_comes_out_may_not(run_folder):
    config, root = resumed.read_resumed([f"resume={run_folder}", "simulation.workers=2", "ray.address=auto"])
    assert root == run_folder
    assert config["simulation"] == {"workers": 2, "threads": 1}
    assert config["ray"] == {"address": "auto"}
    assert config["num_rounds"] == 4
    for argument in (
        "seed=1",
        "simulation.threads=2",
        "simulation=inline",
        "attack=[]",
        "-m",
        "--cfg",
        "~seed",
        "ray=x",
    ):
        with pytest.raises(ConfigError, match="keeps its settings"):
            resumed.read_resumed([f"resume={run_folder}", argument])
    with pytest.raises(ConfigError, match=r"a setting of this run\. Did you mean 'address'"):
        resumed.read_resumed([f"resume={run_folder}", "ray.adress=auto"])
    for flag in (["--config-dir", "conf"], ["--config-dir=conf"], ["-cd", "conf"]):
        assert resumed.read_resumed([*flag, f"resume={run_folder}"]) == resumed.read_resumed([f"resume={run_folder}"])
    assert resumed.read_resumed(["seed=1"]) is resumed.read_resumed(["resume=null"]) is None
    for plus in ("+", "++"):  # as Hydra takes them
        assert resumed.read_resumed([f"{plus}resume={run_folder}"]) == resumed.read_resumed([f"resume={run_folder}"])
        assert resumed.read_resumed([f"{plus}resume=null"]) is None


def test_what_only_workers_can_serve_takes_a_run_of_one_process_to_ray(run_folder):
    path = run_folder / "config.yaml"
    path.write_text(path.read_text().replace("threads: 1", "engine: inline, max_retries: 2"))
    for argument, engine in {
        "simulation.workers=2": "ray",
        "ray.address=auto": "ray",
        "simulation.workers=auto": "inline",
        "ray.address=null": "inline",
        "simulation.max_retries=3": "inline",
    }.items():
        config, _ = resumed.read_resumed([f"resume={run_folder}", argument])
        assert config["simulation"]["engine"] == engine, argument
    config, _ = resumed.read_resumed([f"resume={run_folder}", "simulation.workers=2", "simulation.engine=inline"])
    assert config["simulation"]["engine"] == "inline"


def test_resume_in_a_file_starts_no_other_run(command, tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "again.yaml").write_text(f"# @package _global_\nresume: {tmp_path / 'RUN'}\n")
    run = tmp_path / "run"
    code, _, err = command("fedsim", "--config-dir", str(tmp_path), "experiment=again", f"run_dir={run}")
    assert code == 2
    assert err.startswith(f"error: resume={tmp_path / 'RUN'}: must be null in a file: fedsim resume=RUN goes on")
    assert not (run / "config.yaml").exists()


def test_what_began_on_gpus_does_not_go_on_in_one_process(run_folder):
    path = run_folder / "config.yaml"
    began = path.read_text().replace("threads: 1", "threads: 1, engine: ray, attack_num_gpus: 0.5")
    path.write_text(began)
    assert resumed.read_resumed([f"resume={run_folder}", "simulation.engine=ray"]) is not None
    with pytest.raises(ConfigError, match=r"simulation\.engine=inline: must be ray, .*simulation\.attack_num_gpus"):
        resumed.read_resumed([f"resume={run_folder}", "simulation.engine=inline"])
    path.write_text(began.replace("attack_num_gpus: 0.5", "attack_crews: {dlg: {timeout: 9.0, num_gpus: 1.0}}"))
    with pytest.raises(ConfigError, match=r"=inline: must be ray, .*simulation\.attack_crews\.dlg\.num_gpus"):
        resumed.read_resumed([f"resume={run_folder}", "simulation.engine=inline"])
    path.write_text(began.replace("ray, attack_num_gpus: 0.5}", "inline}\nclient: {device: cuda}"))
    with pytest.raises(ConfigError, match=r"=ray: must be inline, .*client\.device=cuda"):
        resumed.read_resumed([f"resume={run_folder}", "simulation.engine=ray"])


def test_where_there_is_a_gpu_the_engine_stays_if_it_decides_who_computes_on_it(run_folder, monkeypatch):
    path = run_folder / "config.yaml"
    began = yaml.safe_load(path.read_text())
    call = [f"resume={run_folder}", "simulation.engine=inline"]
    path.write_text(
        yaml.safe_dump({**began, "simulation": {**began["simulation"], "engine": "ray"}, "client": {"device": "auto"}})
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resumed.read_resumed(call) is not None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match=r"simulation\.engine=inline: must be ray, .*client\.device=auto"):
        resumed.read_resumed(call)


@pytest.mark.parametrize(
    "content", [None, "[]", "seed: 0\naudit: {num_images: 3}\n", "a: [", "num_rounds: 4\nobserve: {}\n"]
)
def test_a_folder_without_a_run_is_one_clear_line(command, tmp_path, content):
    if content is not None:
        (tmp_path / "config.yaml").write_text(content)
    code, out, err = command("fedsim", f"resume={tmp_path}")
    assert code == 2
    assert err.startswith(f"error: resume={tmp_path}: ")
    assert len(err.splitlines()) == 1
    assert out == ""
    assert {path.name for path in tmp_path.iterdir()} <= {"config.yaml"}


def test_what_clients_keep_is_counted_where_there_has_to_be_room_for_it(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(RunFolder, "check_room", lambda folder, size, what: asked.append((size, what)))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 9).requires_grad_(False))
    resuming.check_room(RunFolder(tmp_path), model, 30.0)
    resuming.check_room(RunFolder(tmp_path), model, 30.0, kept=640)
    assert asked[1][0] - asked[0][0] == 640


@pytest.mark.parametrize(
    ("defenses", "kept"),
    [
        (["defense=[withhold]", "defense.withhold.patterns=[head*]", "defense.withhold.mode=local"], (64 + 1) * 10 * 4),
        (["defense=[topk]"], None),
        (["defense=[topk]", "defense.topk.error_feedback=false"], 0),
        (["finetune=lora", "finetune.aggregate=local_pair"], None),
    ],
)
def test_a_client_keeps_its_own_parameters_or_as_much_as_it_trains(defenses, kept):
    setup = prepare(settings("config", "strategy=fedavg", *WEIGHTS, *defenses))
    trained = sum(one.numel() * one.element_size() for one in setup.model.parameters() if one.requires_grad)
    assert _kept_bytes(setup) == (trained if kept is None else kept)


def test_points_of_another_format_and_none_at_all_are_refused(tmp_path):
    folder = RunFolder(tmp_path)
    folder.append("metrics", {"round": 3})
    pending = resuming.PendingObservations(folder.resume_points / "pending", folder.observations)
    with pytest.raises(ConfigError, match="resume_every_seconds=null left none"):
        resuming.go_back(folder, pending, None)
    SealedStates(folder.resume_points).write(3, {})
    manifest = folder.resume_points / "round-00003" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(ConfigError, match="a resume point of format 1, not 2"):
        resuming.go_back(folder, pending, 30.0)
    assert list(folder.rows("metrics")) == [{"round": 3}]


@pytest.mark.parametrize("said", ["[]", "", '{"finished": false}'])
def test_a_summary_that_does_not_say_finished_costs_no_resume_point(tmp_path, said):
    SealedStates(tmp_path / "resume").write(3, {})
    (tmp_path / "summary.json").write_text(said)
    if said.startswith("{"):
        assert not resuming.finished(tmp_path)
    else:
        with pytest.raises(DamagedFileError, match=r"summary\.json: damaged"):
            resuming.finished(tmp_path)
    assert SealedStates(tmp_path / "resume").numbers() == [3]


def test_lines_that_were_there_at_the_point_and_are_gone_are_said(tmp_path, capsys):
    folder = RunFolder(tmp_path)
    folder.append("metrics", {"round": 1})
    SealedStates(folder.resume_points).write(1, vars(ResumePoint(1, ArrayRecord(), {}, {}, 0.0, tracked=2)))
    resuming.go_back(folder, resuming.PendingObservations(folder.resume_points / "pending", folder.observations), 30.0)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{tmp_path}/metrics.jsonl has 1 of 2 lines that it had after round 1"
    assert said[1] == f"{tmp_path}/attacks.jsonl has 0 of 2 lines that it had after round 1"


@pytest.fixture
def half_lost(tmp_path):
    """A run after round 1, of whose two tracked results the first goes; and what attacks wait for."""
    folder = RunFolder(tmp_path)
    folder.append("metrics", {"round": 0})
    folder.append("metrics", {"round": 1})
    lost = {"frames": None, "original": None, "reconstruction": "reconstructions/lost.png"}
    for name, server_round, images in (("a", 2, [lost]), ("b", 1, []), ("c", 1, [])):
        folder.append("attacks", {"round": server_round, "observation": name, "images": images})
    SealedStates(folder.resume_points).write(1, vars(ResumePoint(1, ArrayRecord(), {}, {}, 0.5, tracked=2)))
    return folder, resuming.PendingObservations(folder.resume_points / "pending", folder.observations)


def test_results_that_go_are_not_counted_as_tracked(half_lost):
    """The third result, which no tracker had for good, was taken for one that all had."""
    folder, pending = half_lost
    manifest = folder.resume_points / "round-00001" / "manifest.json"
    before = manifest.stat().st_ino
    point = resuming.go_back(folder, pending, 30.0)
    assert [row["observation"] for row in folder.rows("attacks")] == ["b", "c"]
    assert point.tracked == 1
    assert resuming.go_back(folder, pending, 30.0).tracked == 1  # interrupted again before the next point
    assert manifest.stat().st_ino == before  # a kill finds it whole
    SealedStates(folder.resume_points).write(1, vars(replace(point, seconds=0.7, tracked=2)))  # another of this round
    assert resuming.go_back(folder, pending, 30.0).tracked == 2


def test_a_kill_while_results_go_costs_no_tracker_any(half_lost, monkeypatch):
    folder, pending = half_lost
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "keep_rows", interrupted_at_attacks)
        with pytest.raises(KeyboardInterrupt):
            resuming.go_back(folder, pending, 30.0)
    assert resuming.go_back(folder, pending, 30.0).tracked <= 1
    assert [row["observation"] for row in folder.rows("attacks")] == ["b", "c"]


def interrupted_at_attacks(_, name, __):
    if name == "attacks":
        raise KeyboardInterrupt


def test_a_disk_that_is_full_when_results_go_is_said(half_lost, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    folder, pending = half_lost
    monkeypatch.setattr(resuming, "write_whole", full)
    assert resuming.go_back(folder, pending, 30.0).tracked == 1
    said = capsys.readouterr().out
    assert "trackers may miss results: [Errno 28] No space left on device" in said
    assert "goes on after round 1; 2 results of attacks are kept" in said


def test_a_damaged_count_of_what_is_left_is_said(half_lost, capsys):
    folder, pending = half_lost
    (folder.resume_points / resuming.LEFT).write_text("{")
    assert resuming.go_back(folder, pending, 30.0).tracked == 1
    assert "tracked.json: damaged" in capsys.readouterr().out


def test_a_run_at_work_is_not_resumed_beside_it(command, copied):
    folder = copied("in a round")
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code, _, err = command("fedsim", f"resume={folder}")
    assert code == 2
    assert "another process is at work in this folder" in err


def test_a_run_does_not_go_on_with_other_images(command, copied):
    folder = copied("in a round")
    path = folder / "content.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"images": content["images"].replace("0", "1")}))
    code, _, err = command("fedsim", f"resume={folder}")
    assert code == 2
    assert f"error: resume={folder}: choose a new folder, or bring back what there was: this one holds" in err
    assert err.endswith("results of other images\n")


def test_a_disk_with_too_little_room_is_refused_before_anything_starts(command, monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    code, _, err = command("fedsim", "simulation=inline", f"run_dir={tmp_path}/run", "num_rounds=1", "num_clients=2")
    assert code == 2
    assert "MB free for a resume point" in err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("value", ["-1", "often", "true"])
def test_a_pace_that_is_none_is_refused(command, tmp_path, value):
    code, _, err = command("fedsim", f"run_dir={tmp_path}/run", f"resume_every_seconds={value}")
    assert code == 2
    assert "resume_every_seconds=" in err
