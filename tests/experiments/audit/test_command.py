"""Audits: the table that everything else is made from, and going on where a call stopped."""

import csv
import json
import time

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from experiments.audit.worker import AuditWorker
from experiments.engine.setup import prepare
from fedsim.data.copies import contents
from fedsim.models import Architecture, ModelSpec
from fedsim.models.generator import ConvGenerator, save_generator
from fedsim.storage.durable import locked
from server.attack_queue.results import COLUMNS, ResultWriter
from tests.experiments.run_files import SMALL_AUDIT as SMALL
from tests.experiments.run_files import rows
from tests.support.federation import settings as settings_of


def table(folder):
    with (folder / "scores.csv").open(newline="") as file:
        reader = csv.DictReader(file)
        assert tuple(reader.fieldnames) == COLUMNS
        return list(reader)


def test_one_row_for_each_picture_and_attack(audit):
    folder = audit("audit.num_images=6", "audit.batch_size=2", "attack=[patch_gradient,labels,april]")
    lines = table(folder)
    assert len(lines) == 18
    assert {line["batch_size"] for line in lines} == {"2"}
    assert {line["model"] for line in lines} == {"vit_nano_patch2_8"}
    assert {line["defense"] for line in lines} == {"none"}
    assert len({line["image"] for line in lines}) == 6
    by_attack = {
        name: [line for line in lines if line["attack"] == name] for name in ("patch_gradient", "labels", "april")
    }
    assert {line["certified"] for line in by_attack["patch_gradient"]} == {"false"}
    assert all(line["refused"] and not line["psnr"] for line in by_attack["april"])
    assert all(line["label_recovered"] and not line["psnr"] for line in by_attack["labels"])


def test_no_worker_holds_copies_of_attacked_images(copies):
    setup = prepare(settings_of("audit", *SMALL, *copies))
    setup = setup.attacking(setup.data.train)
    worker = AuditWorker(setup.config, attacked=setup.attacked)
    held = list(contents(worker._setup.held))
    assert 0 < len(held) < len(setup.data.auxiliary)
    assert not setup.attacked & set(held)


def test_ray_gives_the_table_of_the_inline_run(audit, copies, ray_on_this_machine):
    settings = ["audit.num_images=5", "attack=[patch_gradient,labels]", "defense=[gradient_noise]", *copies]
    inline = table(audit(*settings))
    on_ray = table(audit(*settings, "simulation=ray", "simulation.workers=2"))

    def timeless(lines):
        return sorted(tuple((k, v) for k, v in line.items() if k != "seconds") for line in lines)

    assert timeless(inline) == timeless(on_ray)


def test_an_interrupted_audit_goes_on(audit, tmp_path):
    settings = ["audit.num_images=4", "attack=[patch_gradient,labels]"]
    whole = audit(*settings)
    folder = audit(*settings)
    for name in ("attacks.jsonl", "scores.csv"):
        path = folder / name
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:-3]))
    audit(*settings, folder=folder)
    key = ("observation", "attack")
    results = [{k: row[k] for k in (*key, "images", "labels")} for row in rows(folder, "attacks")]
    expected = [{k: row[k] for k in (*key, "images", "labels")} for row in rows(whole, "attacks")]
    assert results == expected
    assert len(table(folder)) == 8


def test_other_settings_in_the_same_folder_are_refused(audit, command):
    folder = audit("audit.num_images=1")
    code, _, err = command("fedsim-audit", f"run_dir={folder}", *SMALL, "audit.num_images=2")
    assert code == 2
    assert "other settings: audit.num_images=2 now, 1 there" in err


@pytest.mark.parametrize(
    ("name", "written", "said"),
    [
        ("config.yaml", "", "choose a new folder, the config.yaml in this one is damaged"),
        ("config.yaml", "a: [", "choose a new folder, the config.yaml in this one is damaged"),
        ("attacks.jsonl", '{"cut\n', "attacks.jsonl, line 1: damaged, it must hold a JSON object"),
    ],
)
def test_damaged_files_of_a_folder_are_named(name, written, said, audit, command):
    folder = audit("audit.num_images=1")
    (folder / name).write_text(written)
    code, _, err = command("fedsim-audit", f"run_dir={folder}", *SMALL, "audit.num_images=1")
    assert code == 2
    assert said in err.replace("\n", " ")


def test_other_images_or_weights_under_the_same_paths_are_refused(command, tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for index in range(3):
            Image.new("RGB", (8, 8), (80 * index, 9, 9)).save(tmp_path / "data" / name / f"{index}.png")
    spec, checkpoint = ModelSpec("vit_nano_patch2_8", 2), tmp_path / "weights.safetensors"

    def weights(seed):
        save_file(Architecture(spec, (), seed).build().state_dict(), checkpoint)

    def call():
        data = ["data=imagefolder", f"data.path={tmp_path / 'data'}", "data.test_fraction=0", "audit.select=first"]
        model = ["model=vit_nano", f"model.checkpoint={checkpoint}", "simulation=inline"]
        rest = ["data.auxiliary_fraction=0", "audit.num_images=2", "attack=[labels]"]
        return command("fedsim-audit", f"run_dir={tmp_path / 'run'}", *data, *model, *rest)

    def refused(of):
        code, _, err = call()
        start = f"error: run_dir={tmp_path / 'run'}: choose a new folder, or bring back what there was"
        assert (code, err.splitlines()[-1]) == (2, f"{start}: this one holds results of other {of}")

    weights(0)
    assert call()[0] == 0
    weights(1)
    refused("weights")
    weights(0)
    (tmp_path / "data" / "dog" / "0.png").write_bytes((tmp_path / "data" / "dog" / "2.png").read_bytes())
    assert call()[0] == 0, "not among those audited"
    (tmp_path / "data" / "cat" / "0.png").write_bytes((tmp_path / "data" / "cat" / "2.png").read_bytes())
    refused("images")
    assert len(rows(tmp_path / "run", "attacks")) == 2


def test_another_generator_under_the_same_path_is_refused(audit, command, tmp_path):
    path = tmp_path / "g.safetensors"
    words = [
        "audit.num_images=1",
        "attack=[generator_samples]",
        f"attack.generator_samples.generator.checkpoint={path}",
    ]

    def write(seed):
        torch.manual_seed(seed)
        save_generator(ConvGenerator(8, 8, (8,)), path)

    write(0)
    folder = audit(*words)
    write(1)
    code, _, err = command("fedsim-audit", f"run_dir={folder}", *SMALL, *words)
    assert code == 2
    assert err.splitlines()[-1].endswith("this one holds results of other checkpoints of generator_samples")
    content = json.loads((folder / "content.json").read_text())
    del content["checkpoints of generator_samples"]  # as an earlier version left it
    (folder / "content.json").write_text(json.dumps(content))
    audit(*words, folder=folder)


def test_a_batch_that_no_update_would_hold_is_refused(command, tmp_path):
    settings = ["audit.num_images=4", "audit.batch_size=4", "client.batch_size=1", "attack=[labels]"]
    code, _, err = command("fedsim-audit", f"run_dir={tmp_path / 'a'}", *SMALL, *settings)
    assert code == 2
    assert err.startswith(
        "error: client.batch_size=1: must be 4 or more, audit.batch_size, beside client.share=gradient"
    )


def test_an_audit_that_goes_on_counts_the_time_of_before(audit):
    folder = audit("audit.num_images=1", "attack=[labels]")
    summary = folder / "summary.json"
    facts = json.loads(summary.read_text())
    summary.write_text(json.dumps({**facts, "seconds": 3600.0}))
    audit("audit.num_images=1", "attack=[labels]", folder=folder)
    assert 3600.0 < json.loads(summary.read_text())["seconds"] < 3700.0
    summary.unlink()  # cut off
    audit("audit.num_images=1", "attack=[labels]", folder=folder)
    assert json.loads(summary.read_text())["seconds"] is None
    assert "Wall time" not in (folder / "report.html").read_text()


def test_the_folder_of_a_federated_run_is_called_that(audit, command):
    folder = audit("audit.num_images=1")
    settings = (folder / "config.yaml").read_text().replace("observation: null", "observe: {}")
    (folder / "config.yaml").write_text(settings)
    code, _, err = command("fedsim-audit", f"run_dir={folder}", *SMALL, "audit.num_images=1")
    assert (code, err.splitlines()[-1].endswith(": choose a new folder, this one holds a federated run")) == (2, True)


def test_two_processes_are_not_at_work_in_one_folder(audit, command):
    folder = audit("audit.num_images=1")
    before = (folder / "attacks.jsonl").read_bytes()
    with locked(folder):
        code, _, err = command("fedsim-audit", f"run_dir={folder}", *SMALL, "audit.num_images=1")
    assert code == 2
    assert "another process is at work in this folder" in err
    assert (folder / "attacks.jsonl").read_bytes() == before


def test_more_pictures_than_there_are_is_one_clear_line(command, tmp_path):
    code, _, err = command("fedsim-audit", f"run_dir={tmp_path}/a", *SMALL, "audit.num_images=100000")
    assert code == 2
    assert "audit.num_images=100000: must be at most 1,258, the training images" in err
    assert "data.test_fraction=0 data.auxiliary_fraction=0 makes every image one of them" in err
    assert not (tmp_path / "a" / "attacks.jsonl").exists()


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            (4, 3),
            "audit.num_images=4: must be a multiple of audit.batch_size=3, for example 3 or 6: every update holds",
        ),
        ((1, 3), "audit.num_images=1: must be a multiple of audit.batch_size=3, for example 3: every update holds"),
        ((16, 1, "audit.select=[]"), "audit.select=[]: must be ids of pictures, each once"),
        ((16, 1, "audit.select=[a,b,a]"), "audit.select=[a,b,a]: must be ids of pictures, each once"),
        ((16, 3, "audit.select=[a,b]"), "audit.select=[2 ids]: must be in number a multiple of audit.batch_size=3"),
    ],
)
def test_no_update_holds_fewer_images_than_the_others(command, tmp_path, settings, line):
    images, batch, *others = settings
    code, _, err = command(
        "fedsim-audit",
        f"run_dir={tmp_path}/a",
        f"audit.num_images={images}",
        f"audit.batch_size={batch}",
        *SMALL,
        *others,
    )
    assert code == 2
    assert err.startswith(f"error: {line}")  # before the data are read
    assert not (tmp_path / "a" / "config.yaml").exists()


def test_an_audit_leaves_no_empty_folder_and_says_who_records_observations(audit, command, tmp_path):
    folder = audit("audit.num_images=1", "attack=[labels]")
    assert not [path for path in folder.rglob("*") if path.is_dir() and not any(path.iterdir())]
    words = ["attack=[labels]", f"run_dir={tmp_path}/again", f"observation={folder}/observations"]
    code, _, err = command("fedsim-audit", *words)
    assert code == 2
    assert "there is none in this folder; a federated run records them in RUN/observations, an audit does not" in err


def test_a_clipped_update_leaks_as_much_and_a_noisy_one_less(audit):
    def psnr(*defenses):
        lines = table(audit("audit.num_images=4", *defenses))
        return sum(float(line["psnr"]) for line in lines) / len(lines)

    plain = psnr()
    clipped = psnr("defense=[gradient_clip]", "defense.gradient_clip.max_norm=0.01")
    noisy = psnr("defense=[gradient_noise]", "defense.gradient_noise.relative_norm=0.001")
    assert plain > 90
    assert abs(clipped - plain) < 5
    assert noisy < plain - 30


def test_deltas_of_one_step_leak_like_gradients(audit):
    lines = table(audit("audit.num_images=3", "client.share=delta", "client.optimizer.lr=0.1"))
    # Adding the step to the weights rounds it to their last bit: less than from a gradient, still recognisable.
    assert all(40 < float(line["psnr"]) < 80 for line in lines)
    assert all(line["label"] == line["label_recovered"] for line in lines)


def test_april_is_exact_on_its_architecture(audit):
    settings = ["model=april_tiny_4_32", "data=photos", "data.size=32", "+model.kwargs.depth=2", "attack=[april]"]
    lines = table(audit("audit.num_images=2", *settings))
    assert all(float(line["psnr"]) > 150 for line in lines)
    assert {line["certified"] for line in lines} == {"images"}


def test_the_summary_says_that_it_ended(audit):
    folder = audit("audit.num_images=1")
    summary = json.loads((folder / "summary.json").read_text())
    told = summary["verdict"]
    assert (told["level"], told["certified"], told["images"]) == ("broken", 1, 1)
    assert told["sentence"].startswith("The server rebuilt 1 of 1 image recognisably (without the update: 0 of 1)")
    assert summary["kind"] == "audit"
    assert summary["finished"] is True


def test_a_torn_line_is_mended_and_its_update_done_again_once(audit):
    settings = ["audit.num_images=3", "attack=[patch_gradient]"]
    folder = audit(*settings)
    before = table(folder)
    path = folder / "attacks.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    audit(*settings, folder=folder)
    audit(*settings, folder=folder)

    def timeless(lines):
        return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]

    assert timeless(table(folder)) == timeless(before)
    assert len(rows(folder, "attacks")) == 3


def test_failed_attacks_are_tried_again(audit, tmp_path):
    fault = f"attack.flaky={{_target_:tests.server.faulty_attacks.Faulty,fault:raise,marker:{tmp_path}/m}}"
    settings = ["audit.num_images=2", "attack=[patch_gradient]", f"+{fault}"]
    folder = audit(*settings)
    first = {(row["attack"], row["client"]): row["status"] for row in rows(folder, "attacks")}
    assert first == {
        ("patch_gradient", 0): "done",
        ("patch_gradient", 1): "done",
        ("flaky", 0): "failed",
        ("flaky", 1): "done",
    }
    audit(*settings, folder=folder)
    assert len(table(folder)) == 4
    assert rows(folder, "attacks")[-1]["status"] == "done"


def test_a_result_of_the_wrong_shape_fails_alone(audit):
    settings = ["audit.num_images=2", "attack=[patch_gradient]"]
    folder = audit(*settings, "+attack.odd={_target_:tests.server.faulty_attacks.WrongShape}")
    statuses = [(row["attack"], row["status"]) for row in rows(folder, "attacks")]
    assert statuses == [("patch_gradient", "done"), ("odd", "failed")] * 2
    assert "gave images of shape (1, 3, 5, 5)" in rows(folder, "attacks")[1]["reason"]


def test_an_attack_that_writes_into_its_observation_fails(audit):
    folder = audit("audit.num_images=1", "+attack.vandal={_target_:tests.server.faulty_attacks.Vandal}")
    vandal = next(row for row in rows(folder, "attacks") if row["attack"] == "vandal")
    assert vandal["status"] == "failed"
    assert "wrote into the observation" in vandal["reason"]


WALK = "+attack.walk={{_target_:tests.server.faulty_attacks.Walk,log:{log},{rest}}}"


def test_an_audit_interrupted_in_a_search_goes_on_in_it(audit, command, tmp_path):
    settings = ["audit.num_images=2", "attack=[]"]
    whole = audit(*settings, WALK.format(log=tmp_path / "whole", rest="dies_at:0"))
    walk = WALK.format(log=tmp_path / "log", rest="dies_at:8,fault:interrupt")
    folder = tmp_path / "interrupted"
    code, _, _ = command("fedsim-audit", f"run_dir={folder}", *SMALL, *settings, walk)
    assert code != 0
    assert len(list((folder / "scratch").glob("*/state.safetensors"))) == 1
    audit(*settings, walk, folder=folder)
    steps = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert [int(step) for name, step in steps if name == "0-0"] == [*range(1, 9), *range(7, 11)]
    assert not (folder / "scratch").exists()
    assert not (whole / "scratch").exists()
    for own, expected in zip(rows(folder, "attacks"), rows(whole, "attacks"), strict=True):
        assert {**own, "seconds": 0} == {**expected, "seconds": 0}
        frames = own["images"][0]["frames"]
        assert frames["steps"] == frames["strip_steps"] == list(range(1, 11))
        assert frames["psnr"][-1] == pytest.approx(own["images"][0]["psnr"])
        assert (folder / frames["strip"]).read_bytes() == (whole / frames["strip"]).read_bytes()
    page = (folder / "report.html").read_text()
    assert page.count('class="film"') == 2
    assert "The search, step by step" in page


def test_a_search_whose_worker_was_killed_goes_on_in_another(audit, ray_on_this_machine, tmp_path):
    walk = WALK.format(log=tmp_path / "log", rest="dies_at:8")
    settings = ["audit.num_images=2", "audit.victims=2", "attack=[patch_gradient]", walk, "simulation=ray"]
    folder = audit(*settings, "simulation.workers=1")
    steps = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert [int(step) for name, step in steps if name == "0-0"] == [*range(1, 9), *range(7, 11)]
    assert [int(step) for name, step in steps if name == "0-1"] == [*range(1, 11)]
    attempts = {(row["attack"], row["status"], row["attempts"]) for row in rows(folder, "attacks")}
    assert attempts == {("patch_gradient", "done", 1), ("walk", "done", 2)}
    assert not (folder / "scratch").exists()


def statuses(folder):
    return {row["attack"]: row["status"] for row in rows(folder, "attacks")}


def test_what_had_finished_of_an_update_outlives_the_attack_that_ends_the_audit(command, tmp_path):
    walk = WALK.format(log=tmp_path / "log", rest="dies_at:1,fault:interrupt")
    folder = tmp_path / "interrupted"
    code, _, _ = command("fedsim-audit", f"run_dir={folder}", *SMALL, "audit.num_images=1", "attack=[labels]", walk)
    assert code != 0
    assert statuses(folder) == {"labels": "done"}


def test_an_attack_that_is_stopped_takes_no_other_with_it(audit, ray_on_this_machine):
    hang = "+attack.hang={_target_:tests.server.faulty_attacks.Faulty,fault:hang}"
    settings = ["audit.num_images=1", "attack=[labels]", hang, "simulation=ray", "simulation.workers=1"]
    folder = audit(*settings, "simulation.attack_timeout=3")
    assert statuses(folder) == {"labels": "done", "hang": "failed"}


def test_an_update_is_computed_once_and_in_no_attack_s_time(audit, ray_on_this_machine, tmp_path, monkeypatch):
    write = ResultWriter.write
    monkeypatch.setattr(ResultWriter, "write", lambda *given: (time.sleep(0.5), write(*given)))
    slow = f"+defense.slow={{_target_:tests.experiments.faulty_defense.Slow,log:{tmp_path / 'log'},seconds:4}}"
    settings = ["audit.num_images=3", "attack=[labels,patch_gradient]", slow, "simulation=ray", "simulation.workers=2"]
    folder = audit(*settings, "simulation.attack_timeout=3")
    assert statuses(folder) == {"labels": "done", "patch_gradient": "done"}
    assert (tmp_path / "log").read_text() == 3 * "one\n"


def crowd(tmp_path, name, **settings):
    rest = "".join(f",{key}:{value}" for key, value in settings.items())
    return f"+attack.crowd={{_target_:tests.server.faulty_attacks.Crowd,log:{tmp_path / name}{rest}}}"


def told(folder):
    keys = ("observation", "attack", "status", "reason", "images")
    return sorted(({key: row[key] for key in keys} for row in rows(folder, "attacks")), key=str)


def test_victims_together_have_the_results_of_one_by_one(audit, tmp_path):
    settings = ["audit.num_images=5", "attack=[patch_gradient]"]
    single = audit(*settings, crowd(tmp_path, "log", refused=1))
    (tmp_path / "log").unlink()
    together = audit(*settings, crowd(tmp_path, "log", refused=1), "audit.victims=3")
    assert (tmp_path / "log").read_text().splitlines() == ["0 1 2", "3 4"]
    assert told(together) == told(single)
    statuses = [row["status"] for row in rows(together, "attacks") if row["attack"] == "crowd"]
    assert statuses == ["done", "refused", "done", "done", "done"]
    # Another number of victims changes no result: the folder is still good, and what is missing is done alone.
    path = together / "attacks.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-3]))
    audit(*settings, crowd(tmp_path, "log", refused=1), "audit.victims=2", folder=together)
    assert (tmp_path / "log").read_text().splitlines()[2:] == ["3 4"]
    assert told(together) == told(single)


def test_a_result_whose_picture_went_with_the_power_comes_again(audit, tmp_path):
    folder = audit("audit.num_images=2", "attack=[patch_gradient]")
    before, picture = told(folder), folder / rows(folder, "attacks")[0]["images"][0]["reconstruction"]
    content = picture.read_bytes()
    picture.write_bytes(b"")
    audit("audit.num_images=2", "attack=[patch_gradient]", folder=folder)
    assert picture.read_bytes() == content
    assert told(folder) == before


def test_settings_of_the_simulation_that_change_bits_ask_for_a_new_folder(audit, command, tmp_path):
    folder = audit("audit.num_images=1", "attack=[patch_gradient]")
    again = [f"run_dir={folder}", *SMALL, "audit.num_images=1", "attack=[patch_gradient]"]
    code, _, err = command("fedsim-audit", *again, "simulation.threads=3")
    assert code == 2
    assert "other settings: simulation.threads=3 now, 1 there" in err


def test_a_fault_among_victims_is_that_of_one(audit, tmp_path):
    folder = audit("audit.num_images=3", "attack=[]", "audit.victims=3", crowd(tmp_path, "log", fault_at=1))
    assert [row["status"] for row in rows(folder, "attacks")] == ["done", "failed", "done"]
    assert (tmp_path / "log").read_text().splitlines() == ["0 1 2", "0", "1", "2"]


@pytest.mark.parametrize("victims", ["0", "many", "true", "1.5"])
def test_victims_are_counted(command, tmp_path, victims):
    code, _, err = command("fedsim-audit", f"run_dir={tmp_path}/a", *SMALL, f"audit.victims={victims}")
    assert code == 2
    assert "audit.victims" in err
    assert not (tmp_path / "a").exists() or not (tmp_path / "a" / "attacks.jsonl").exists()


def test_an_attacks_name_is_no_path(audit, tmp_path):
    walk = f"attack={{../../up:{{_target_:tests.server.faulty_attacks.Walk,log:{tmp_path}/log}}}}"
    folder = audit("audit.num_images=1", "attack=[]", "+" + walk, folder=tmp_path / "a" / "b")
    (row,) = rows(folder, "attacks")
    assert row["status"] == "done"
    image = row["images"][0]
    for name in (image["reconstruction"], image["frames"]["strip"]):
        assert (folder / name).is_file()
        assert name.count("/") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"a", "log"}


def test_what_an_audit_would_not_use_of_a_crew_is_refused(command, tmp_path):
    crew = "+simulation.attack_crews={patch_gradient: {timeout: 60, threads: 2}}"
    code, _, err = command("fedsim-audit", "attack=[patch_gradient]", crew, f"run_dir={tmp_path / 'a'}")
    assert code == 2
    assert "simulation.attack_crews.patch_gradient.threads=2: must be left out" in err
    code, _, err = command("fedsim-audit", "simulation.attack_threads=2", f"run_dir={tmp_path / 'a'}")
    assert code == 2
    assert "simulation.attack_threads=2: must be 1 in an audit" in err


def test_statistics_of_a_batchnorm_are_part_of_an_update(audit):
    folder = audit("audit.num_images=2", "model.name=test_resnet", "client.share=delta", "attack=[labels]")
    assert {row["status"] for row in rows(folder, "attacks")} == {"done"}
