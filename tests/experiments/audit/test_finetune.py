"""Audits of fine-tuning: from Python, from a command, and of what an earlier run has captured."""

import json

import torch

import fedsim
from fedsim.models import ModelSpec

SMALL = ("simulation=inline", "tracker=[]", "data=digits", "model=vit_nano")


def results(folder):
    lines = (folder / "attacks.jsonl").read_text().splitlines()
    return {row["attack"]: (row["status"], row["reason"]) for row in map(json.loads, lines)}


def test_from_python(tmp_path):
    model = ModelSpec("vit_nano_patch2_8", 10).build(0)
    images, labels = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(3)), torch.arange(4)
    settings = {"finetune": {"lora": {"rank": 2}}, "num_images": 2, "run_dir": tmp_path / "run"}
    found = fedsim.audit(model, (images, labels), ["labels", "row_space"], **settings)
    assert found.table.set_index("attack").loc["labels", "label_share"] == 1.0
    refused = {one.reason for one in found.results["none"] if one.attack == "row_space"}
    assert refused == {"patch_embed.proj.weight is not trained (finetune=lora), so it has no gradient"}
    page = found.report(tmp_path / "leak.html").read_text(encoding="utf-8")
    assert "LoRA (rank=2, alpha=16.0" in page


def test_by_command_and_from_disk(command, tmp_path):
    run, again, audit = (tmp_path / name for name in ("run", "again", "audit"))
    few = ("data.test_fraction=0.05", "data.auxiliary_fraction=0.9", "num_clients=2", "num_rounds=2", "observe.every=1")
    code, _, error = command("fedsim", *SMALL, *few, "finetune=adapter", "attack=[labels]", f"run_dir={run}")
    assert code == 0, error
    attacks = "attack=[labels,patch_gradient]"
    code, _, error = command("fedsim-audit", *SMALL, f"observation={run / 'observations'}", attacks, f"run_dir={again}")
    assert code == 0, error
    reason = "pos_embed is not trained (finetune=adapter), so it has no gradient"
    assert results(again) == {"labels": ("done", ""), "patch_gradient": ("refused", reason)}
    asked = ("finetune=adapter", "audit.num_images=1", "bound=[determined]")
    code, _, error = command("fedsim-audit", *SMALL, *asked, attacks, f"run_dir={audit}")
    assert code == 0, error
    assert results(audit) == results(again)
    (bound,) = [json.loads(line) for line in (audit / "bounds.jsonl").read_text().splitlines()]
    assert "of 1 are determined near themselves" in bound["sentence"]


def test_another_recipe_is_another_audit(command, tmp_path):
    asked = (*SMALL, "audit.num_images=1", "attack=[labels]", f"run_dir={tmp_path / 'run'}")
    assert command("fedsim-audit", *asked, "finetune=head")[0] == 0
    code, _, error = command("fedsim-audit", *asked, "finetune=norm")
    assert code == 2
    assert "this one holds a run with other settings: finetune" in error.replace("\n", " ")
