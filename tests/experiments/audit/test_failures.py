"""Audits in which something fails: what is said of it, whose doing it was, and with what the command ends."""

import errno
import json
import re
import shutil

import pytest
import torch
from PIL import Image

import experiments.audit.command as audit_module
import fedsim
from server.attack_queue.results import ResultWriter
from tests.experiments.run_files import SMALL_AUDIT as SMALL
from tests.experiments.run_files import rows


def test_an_audit_without_a_single_update_has_failed(command, tmp_path):
    settings = [f"run_dir={tmp_path / 'run'}", *SMALL, "audit.num_images=2", "audit.batch_size=2"]
    fault = "+defense.broken={_target_:tests.experiments.faulty_defense.FailsAtBatch,at:1}"
    code, _, err = command("fedsim-audit", *settings, "attack=[patch_gradient,labels]", fault)
    assert code == 2
    assert "error: no update could be computed, the last one because of RuntimeError: <b>out of pictures</b>" in err
    assert [row["status"] for row in rows(tmp_path / "run", "attacks")] == ["failed", "failed"]
    assert (tmp_path / "run" / "report.html").exists()


def test_updates_whose_workers_were_stopped_had_been_computed(command, tmp_path, monkeypatch):
    def stopped(setup, groups, scratch, broke):
        for group in groups:
            yield group, audit_module._lost(group, setup, "no result within 3600 s", 3600.0), 1, True

    monkeypatch.setattr(audit_module, "_results", stopped)
    code, _, err = command("fedsim-audit", f"run_dir={tmp_path}", *SMALL, "audit.num_images=2", "attack=[labels]")
    assert code == 2
    assert "error: no attack came to an end, the last one because of no result within 3600 s" in err.splitlines()


def test_a_call_that_goes_on_and_is_cut_off_leaves_nobody_elses_summary(command, tmp_path, monkeypatch):
    settings = [f"run_dir={tmp_path}", *SMALL, "audit.num_images=2", "attack=[labels]"]

    def cut_off(*_):
        raise KeyboardInterrupt

    assert command("fedsim-audit", *settings)[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr("experiments.engine.reporting.report_run", cut_off)
        assert command("fedsim-audit", *settings)[0] == 130
    assert not (tmp_path / "summary.json").exists()
    assert command("fedsim-audit", *settings)[0] == 0
    assert json.loads((tmp_path / "summary.json").read_text())["seconds"] is None


def test_a_folder_removed_under_an_audit_is_one_clear_line(command, tmp_path, monkeypatch):
    def remove(self, result, truth):
        shutil.rmtree(tmp_path / "run")
        write(self, result, truth)

    write = ResultWriter.write
    monkeypatch.setattr(ResultWriter, "write", remove)
    code, out, err = command("fedsim-audit", f"run_dir={tmp_path / 'run'}", *SMALL, "audit.num_images=1")
    assert code == 2
    last = f"error: {tmp_path / 'run'}: this folder was removed or moved while the command was at work in it"
    assert err.splitlines()[-1] == last
    assert "unfinished" not in out + err
    assert "Traceback" not in out + err


def test_a_file_of_the_folder_that_is_another_users_is_one_clear_line(command, tmp_path, monkeypatch):
    """Root may write to any: refused here as the system would refuse another user."""

    def refuse(path, content):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    folder = tmp_path / "run"
    settings = [f"run_dir={folder}", *SMALL, "audit.num_images=1"]
    with monkeypatch.context() as patched:
        patched.setattr("fedsim.storage.json_lines.append_whole", refuse)
        code, _, err = command("fedsim-audit", *settings)
    assert code == 2
    again = "Once it can be written to, the same command with this run_dir goes on"
    said = f"error: {folder}/attacks.jsonl: Permission denied; what had finished is kept. {again}"
    assert err.splitlines()[-1] == said
    assert command("fedsim-audit", *settings)[0] == 0


SPOILS = "+defense.spoils={{_target_:tests.experiments.faulty_defense.Spoils,how:{how}}}"


@pytest.mark.parametrize(
    ("how", "share", "words"),
    [
        ("flat", "gradient", "tensor cls_token has the shape (64), the model's has (1, 1, 64)"),
        ("divided", "gradient", "tensor cls_token has values that are not finite"),
        ("divided", "delta", "tensor cls_token has values that are not finite"),
        ("divided", "weights", "tensor cls_token has values that are not finite"),
        ("huge", "delta", "tensor cls_token has values up to 1.0e+20, more than 1e+12"),
        ("renamed", "gradient", "tensor 'own.cls_token' is none that clients share"),
    ],
)
def test_an_update_that_no_client_could_share_ends_the_audit(command, tmp_path, how, share, words):
    settings = [f"run_dir={tmp_path / 'run'}", *SMALL, "audit.num_images=2", f"client.share={share}"]
    code, out, err = command("fedsim-audit", *settings, "attack=[patch_gradient]", SPOILS.format(how=how))
    assert code == 2
    assert (
        f"error: update 0: malformed update: {words} (the training's doing, or that of defense=[spoils])"
        in err.splitlines()
    )
    assert "patch_gradient failed" not in out
    assert [row["status"] for row in rows(tmp_path / "run", "attacks")] == ["failed"]


@pytest.mark.parametrize("share", ["gradient", "delta", "weights"])
def test_an_update_in_parts_is_none_of_these(audit, share):
    folder = audit("audit.num_images=2", f"client.share={share}", "attack=[labels]", SPOILS.format(how="dropped"))
    assert {row["status"] for row in rows(folder, "attacks")} <= {"done", "refused"}


def test_a_malformed_update_ends_the_audit_on_ray_too(command, tmp_path, ray_on_this_machine):
    settings = [f"run_dir={tmp_path / 'run'}", *SMALL, "simulation=ray", "simulation.workers=1", "audit.num_images=3"]
    code, _, err = command("fedsim-audit", *settings, "attack=[labels]", SPOILS.format(how="flat"))
    assert code == 2
    assert "malformed update: tensor cls_token has the shape (64)" in err


def test_what_a_defense_raises_is_said_of_the_update_and_of_its_line(command, tmp_path):
    settings = [f"run_dir={tmp_path / 'run'}", *SMALL, "audit.num_images=2"]
    fault = "+defense.broken={_target_:tests.experiments.faulty_defense.FailsAtBatch,at:1}"
    code, out, _ = command("fedsim-audit", *settings, "attack=[patch_gradient,labels]", fault)
    assert code == 0
    (line,) = (line for line in out.splitlines() if "could not be computed" in line)
    assert line.startswith("update 0 could not be computed: RuntimeError: <b>out of pictures</b> in ")
    assert re.search(rf"faulty_defense\.py:\d+ \(traceback: {tmp_path}/run/fedsim\.log\)$", line)
    assert "failed on update" not in out
    assert "Traceback" in (tmp_path / "run" / "fedsim.log").read_text()
    reasons = {row["reason"].split(" in ")[0] for row in rows(tmp_path / "run", "attacks") if row["reason"]}
    assert reasons == {"the update could not be computed: RuntimeError: <b>out of pictures</b>"}


def test_where_the_traceback_of_an_attack_is_stands_beside_its_failure(command, tmp_path):
    settings = [f"run_dir={tmp_path / 'run'}", *SMALL, "audit.num_images=1", "attack=[labels]"]
    fault = "+attack.mine={_target_:tests.server.faulty_attacks.Faulty,fault:raise}"
    code, out, _ = command("fedsim-audit", *settings, fault)
    assert code == 0
    (line,) = (line for line in out.splitlines() if "failed on update" in line)
    log = tmp_path / "run" / "fedsim.log"
    assert line == f"mine failed on update 0: ZeroDivisionError: by zero (traceback: {log})"
    assert 'raise ZeroDivisionError("by zero")' in log.read_text()


def test_a_truncated_picture_is_no_attacks_failure(command, tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for index in range(6):
            noise = torch.randint(0, 256, (8, 8, 3), dtype=torch.uint8).numpy()
            Image.fromarray(noise).save(tmp_path / "data" / name / f"{index}.png")
    broken = tmp_path / "data" / "cat" / "0.png"
    broken.write_bytes(broken.read_bytes()[:-60])
    data = ["data=imagefolder", f"data.path={tmp_path / 'data'}", "data.test_fraction=0", "audit.select=first"]
    settings = ["model=vit_nano", "simulation=inline", "audit.num_images=2", "attack=[patch_gradient]"]
    code, out, err = command("fedsim-audit", f"run_dir={tmp_path / 'run'}", *data, *settings)
    assert code == 0, err
    assert f"update 0 could not be computed: data={broken}: this picture cannot be decoded" in out
    assert "patch_gradient failed" not in out


FAULTY = "tests.server.faulty_attacks.Faulty"


def test_an_audit_of_which_every_attack_failed_has_failed(command, tmp_path, ray_on_this_machine):
    settings = [*SMALL, "audit.num_images=1", "attack=[]"]
    raises, refuses = (f"+attack.{fault}s={{_target_:{FAULTY},fault:{fault}}}" for fault in ("raise", "refuse"))
    code, _, err = command("fedsim-audit", f"run_dir={tmp_path / 'a'}", *settings, raises)
    assert code == 2
    because = "ZeroDivisionError: by zero"
    line = f"error: no attack came to an end, the last one because of {because} (traceback: {tmp_path}/a/fedsim.log)"
    assert line in err.splitlines()
    assert "Traceback" in (tmp_path / "a" / "fedsim.log").read_text()
    for name, attacks in (("b", [refuses]), ("c", [raises, refuses])):
        code, _, err = command("fedsim-audit", f"run_dir={tmp_path / name}", *settings, *attacks)
        assert code == 0, err
    on_ray = [f"run_dir={tmp_path / 'ray'}", *settings, "simulation=ray", "simulation.workers=1"]
    code, _, err = command("fedsim-audit", *on_ray, raises)
    assert code == 2
    assert f"because of {because} (traceback: {tmp_path}/ray/fedsim.log)" in err
    assert "faulty_attacks.py" in (tmp_path / "ray" / "fedsim.log").read_text()


def test_a_record_on_which_every_attack_failed_is_a_failed_audit_too(command, tmp_path):
    small = ["num_clients=2", "num_rounds=1", "observe.every=1", "tracker=[]", "attack=[labels]", "simulation=inline"]
    code, out, err = command("fedsim", *small, f"run_dir={tmp_path / 'run'}")
    assert code == 0, err
    assert out.splitlines()[-3].startswith("not tested: Only labels were attacked")  # a run ends with its verdict
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["test_pictures"] == 359  # of 1,797 digits
    assert (summary["verdict"]["level"], summary["verdict"]["images"]) == ("not tested", 0)
    again = [f"observation={tmp_path / 'run' / 'observations'}", "simulation=inline", "attack=[]"]
    for name, fault, expected in (("a", "raise", 2), ("b", "refuse", 0)):
        attack = f"+attack.faulty={{_target_:{FAULTY},fault:{fault}}}"
        code, _, err = command("fedsim-audit", *again, attack, f"run_dir={tmp_path / name}")
        assert code == expected, err
        assert ("no attack came to an end" in err) == (expected == 2)


def test_why_an_attack_failed_on_a_recorded_observation_is_said(command, tmp_path):
    """Of a module in hand no file tells how to build it: what reads the tensors alone goes on."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 5))
    fedsim.observe(model, torch.rand(1, 3, 4, 4), [3]).save(tmp_path / "seen" / "round-00000-client-00000")
    attacks = ["attack=[labels,inverting_gradients]", "attack.inverting_gradients.steps=1", "simulation=inline"]
    code, out, _ = command("fedsim-audit", f"observation={tmp_path / 'seen'}", *attacks, f"run_dir={tmp_path / 'run'}")
    assert code == 0
    said = "inverting_gradients failed on round-00000-client-00000: ConfigError: model=Sequential: must be the module"
    (line,) = (line for line in out.splitlines() if line.startswith(said))
    assert line.endswith(f"(traceback: {tmp_path / 'run' / 'fedsim.log'})")


def test_a_matrix_has_a_folder_of_its_own(command, tmp_path):
    (tmp_path / "matrix.json").write_text("{}")
    code, _, err = command("fedsim-audit", f"run_dir={tmp_path}", *SMALL, "audit.num_images=1", "attack=[labels]")
    assert code == 2
    assert f"run_dir={tmp_path}: choose a new folder, this one holds a matrix" in err
    assert not (tmp_path / "config.yaml").exists()
