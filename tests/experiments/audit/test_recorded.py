"""Folders of observations: what a report says of all of them, and what is no folder of one kind."""

import json

import pytest
import torch
import yaml

import fedsim
from attacks.running import BROKEN, run_attack
from fedsim.models.generator import ConvGenerator, save_generator
from fedsim.result import AttackResult
from tests.experiments.run_files import rows

SMALL = ["attack=[labels]", "simulation=inline"]


@pytest.fixture
def save(tmp_path):
    """`save(name, …)`: an observation of a small model, with the settings of `fedsim.observe`; gives its folder."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 5))

    def call(name, **settings):
        folder = tmp_path / "seen" / name
        fedsim.observe(model, torch.rand(1, 3, 4, 4), [3], **settings).save(folder)
        return folder

    return call


def test_results_are_kept_by_the_name_of_an_observation_and_not_of_its_folder(command, save, tmp_path):
    words = [f"observation={save('mine').parent}", *SMALL, f"run_dir={tmp_path / 'run'}"]
    for _ in range(2):
        code, _, err = command("fedsim-audit", *words)
        assert code == 0, err
        assert len((tmp_path / "run" / "attacks.jsonl").read_text().splitlines()) == 1
    save("other")
    code, _, err = command("fedsim-audit", *words[:-1], f"run_dir={tmp_path / 'both'}")
    assert code == 2
    assert "other: it is called round-00000-client-00000 inside, as" in err


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"defense": ["half"]}, "defenses"),
        ({"share": "delta"}, "kind of update"),
        ({"finetune": "bias"}, "fine-tuning"),
    ],
)
def test_a_folder_holds_updates_of_one_kind(command, save, tmp_path, settings, what):
    """A report names one model and its defenses: a certificate of an undefended update stood beside one."""
    save("a", **settings)
    folder = save("b", client=1)
    code, _, err = command("fedsim-audit", f"observation={folder.parent}", *SMALL, f"run_dir={tmp_path / 'run'}")
    assert code == 2
    assert f"/b: it has other {what} than {folder.parent}/a, and a report is of one" in err


def test_another_generator_under_the_same_path_is_refused(command, save, tmp_path):
    path = tmp_path / "g.safetensors"
    words = [f"observation={save('a')}", "attack=[generator_samples]", "simulation=inline"]
    words += [f"attack.generator_samples.generator.checkpoint={path}", f"run_dir={tmp_path / 'run'}"]
    for latent, expected in ((8, 0), (4, 2)):
        save_generator(ConvGenerator(latent, 4, (8,)), path)
        code, _, err = command("fedsim-audit", *words)
        assert code == expected, err
    assert "this one holds results of other checkpoints of generator_samples" in err


@pytest.mark.parametrize("name", ["update.safetensors", "../global-*.safetensors"])
def test_a_file_that_is_missing_is_named_before_an_attack_begins(command, save, tmp_path, name):
    save("a")
    folder = save("b", client=1)
    (missing,) = folder.glob(name)
    missing.unlink()
    code, _, err = command("fedsim-audit", f"observation={folder.parent}", *SMALL, f"run_dir={tmp_path / 'run'}")
    assert code == 2
    assert err.splitlines()[-1].endswith(f"no complete observation: {missing.resolve()} is missing")
    assert not (tmp_path / "run").exists()


def test_the_report_has_the_training_of_the_record(command, save, tmp_path):
    training = {"share": "delta", "local_steps": 2, "lr": 0.05, "finetune": "bias", "label_smoothing": 0.1}
    folder = save("a", **training, defense=["half"], augment=["RandomHorizontalFlip"])
    code, _, err = command("fedsim-audit", f"observation={folder}", *SMALL, f"run_dir={tmp_path / 'run'}")
    assert code == 0, err
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    protocol = json.loads((folder / "observation.json").read_text())["protocol"]
    client = config["client"]
    assert config["finetune"]["_target_"].endswith(".Bias")
    assert (client["local_steps"], client["optimizer"]["lr"]) == (2, 0.05)
    for name in ("batch_size", "label_smoothing", "training_mode", "precision"):
        assert client[name] == protocol[name]
    assert client["augment"] == ["RandomHorizontalFlip"]
    assert config["defense"] == {"half": {"_target_": "defenses.Half", "dtype": "float16", "error_feedback": False}}
    assert config["audit"]["num_images"] is None
    assert "<dd>Bias" in (tmp_path / "run" / "report.html").read_text()


def test_an_attack_that_broke_cuda_in_an_earlier_call_is_tried_again_after_all_others(
    command, save, tmp_path, monkeypatch
):
    def breaking(observation, name, *rest):
        if name == "labels":
            return AttackResult.of(observation, name, "failed", f"an assert; {BROKEN}")
        return run_attack(observation, name, *rest)

    monkeypatch.setattr("server.attack_queue.scheduling.run_attack", breaking)
    folder = [save("a"), save("b", client=1)][0].parent
    words = [f"observation={folder}", "attack=[labels,april]", "simulation=inline", f"run_dir={tmp_path / 'run'}"]
    for _ in range(2):
        code, _, err = command("fedsim-audit", *words)
        assert code == 2
        assert "error: labels on round-00000-client-00000: an assert; CUDA" in err
    found = [(row["attack"], row["client"]) for row in rows(tmp_path / "run", "attacks")]
    assert found == [("labels", 0), ("april", 0), ("april", 1), ("labels", 0)]
