"""`bound=[…]` from the command to the report, and `fedsim.audit(bounds=…)`."""

import json
import sys
from dataclasses import replace

import pytest
import torch

import fedsim
from experiments.audit.bounds import _parties
from experiments.engine.setup import prepare
from fedsim.errors import ConfigError
from tests.experiments.run_files import SMALL_AUDIT as SMALL
from tests.experiments.run_files import rows
from tests.support.federation import settings

FEW = ["audit.num_images=2", "attack=[labels]"]
ALL = "bound=[reconstruction_robustness,pairs,gaussian_reference,determined,canaries]"


def test_every_bound_behind_dp_sgd(audit):
    folder = audit(*FEW, "defense=[dp_sgd]", ALL, "audit.num_images=1", "bound.canaries.canaries=60")
    found = {row["bound"]: row for row in rows(folder, "bounds")}
    assert {name: (row["kind"], row["status"]) for name, row in found.items()} == {
        "reconstruction_robustness": ("theorem", "done"),
        "pairs": ("theorem", "done"),
        "gaussian_reference": ("reference", "done"),
        "determined": ("local fact", "done"),
        "canaries": ("test", "done"),
    }
    verdict = json.loads((folder / "summary.json").read_text())["verdict"]
    assert verdict["level"] == "proven"
    assert verdict["sentence"].startswith(found["reconstruction_robustness"]["sentence"])
    (strip,) = found["pairs"]["strips"]
    assert all((folder / panel["image"]).is_file() for panel in strip["panels"])
    page = (folder / "report.html").read_text()
    assert "What stands beside the attacks" in page
    assert page.count('<li><img class="tiny"') == len(strip["panels"])


def test_what_does_not_apply_says_so_in_one_line(audit):
    folder = audit(*FEW, "defense=[topk]", ALL)
    found = {row["bound"]: row for row in rows(folder, "bounds")}
    assert {row["status"] for row in found.values()} == {"refused"}
    assert found["pairs"]["reason"] == "no Gaussian noise is added: whatever differs is told apart"
    assert found["determined"]["reason"] == "not computed behind what Sparsifies does"
    assert "no defense is differentially private" in found["canaries"]["reason"]
    page = (folder / "report.html").read_text()
    assert page.count("refused: ") >= len(found)
    assert json.loads((folder / "summary.json").read_text())["verdict"]["level"] == "not tested"


def test_an_audit_without_attacks_and_the_same_folder_again(audit):
    few = ["audit.num_images=1", "attack=[]", "defense=[dp_sgd]", "bound=[reconstruction_robustness]"]
    folder = audit(*few)
    before = rows(folder, "bounds")
    assert len(before) == 1
    audit(*few, folder=folder)
    assert rows(folder, "bounds") == before, "what is done is kept"


def test_no_earlier_call_is_named_where_there_was_none(command, tmp_path):
    few = ["audit.num_images=1", "attack=[]", "defense=[dp_sgd]", "bound=[reconstruction_robustness]"]
    code, out, err = command("fedsim-audit", f"run_dir={tmp_path / 'run'}", *SMALL, *few)
    assert code == 0, err
    assert "earlier call" not in out


def test_sums_over_clients(audit):
    names = "bound=[reconstruction_robustness,pairs]"
    folder = audit("audit.num_images=2", "attack=[labels]", "defense=[dp_sgd,secure_aggregation]", names)
    proven, pairs = rows(folder, "bounds")
    assert proven["status"] == "done", "what is made of private updates is as private"
    assert pairs["reason"] == "the server sees sums over clients: this is of one client's update"


def test_bounds_are_of_the_clients_that_are_audited(audit):
    """Eight images each, of which two steps of four take each image once."""
    steps = ["client.share=delta", "client.local_steps=2", "client.batch_size=4", "audit.batch_size=8"]
    folder = audit("audit.num_images=8", "attack=[]", "defense=[dp_sgd]", "bound=[reconstruction_robustness]", *steps)
    (proven,) = rows(folder, "bounds")
    assert (proven["values"]["mu"], proven["values"]["releases"]) == (1.0, 1)


def test_they_are_computed_here_where_the_nodes_of_a_cluster_have_the_gpus(monkeypatch):
    setup = prepare(settings("audit", *SMALL, "attack=[labels]"))
    config = setup.config
    setup = replace(setup, config=replace(config, client=replace(config.client, device="cuda")))
    for there in (False, True):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=there: there)
        (party,) = _parties(setup, [(0, (0,))])
        assert party.runtime.device.type == ("cuda" if there else "cpu")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["bound=[pair]"], "Did you mean 'pairs'"),
        (["bound=[pairs]", "bound.pairs.blur=[1]"], "blur"),
        (["bound=[pairs]", "bound.pairs.blurs=[0]"], "standard deviations in pixels, above 0"),
        (["bound=[canaries]", "bound.canaries.canaries=1"], "from 2 to 4,000, or null"),
        (["bound=[pairs]", "bound.pairs.blurs=[a]"], "standard deviations in pixels, above 0"),
        (["bound=[pairs]", "bound.pairs.blocks=null"], "bound.pairs.blocks"),
        (["bound=[pairs]", "bound.pairs.images=1.5"], "bound.pairs.images"),
        (["bound=[reconstruction_robustness]", "bound.reconstruction_robustness.kappas=[true]"], "between 0 and 1"),
        (["bound=[gaussian_reference]", "bound.gaussian_reference.image_std=0"], "image_std"),
        (["bound=[]", "attack=[]"], "at least one attack"),
        (["bound=[pairs]", "observation=runs/x"], "computed from the clients' images, which it does not hold"),
        (["audit.num_images=2", "observation=runs/x"], "audit.num_images=2: must be left out beside observation="),
        (["audit.batch_size=2", "observation=runs/x"], "audit.batch_size=2: must be left out"),
        (["audit.select=first", "observation=runs/x"], "audit.select=first: must be left out"),
        (["audit.victims=2", "observation=runs/x"], "audit.victims=2: must be left out"),
    ],
)
def test_mistakes_are_answered_in_one_line_before_anything_starts(command, tmp_path, settings, words):
    code, _, err = command("fedsim-audit", f"run_dir={tmp_path / 'run'}", *SMALL, *settings)
    assert code == 2
    assert words in err
    assert not (tmp_path / "run" / "attacks.jsonl").exists()


MODULE = """
import torch

from clients.bounds import Bound
from fedsim.bounds.statement import Proof, Statement


class Mean(Bound):
    kind = "theorem"

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def __call__(self, turns):
        if self.fault == "raises":
            raise ZeroDivisionError("no images")
        mean = turns[0].images.mean()
        proof = Proof(1e-3, 1e-3, 0.0, 1, "image")
        values = {"mean": mean if self.fault == "no json" else float(mean)}
        return Statement("theorem", f"{len(turns)} images.", values, proof=proof)


class Kindless(Bound):
    def __call__(self, turns): ...
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "conf" / "bound").mkdir(parents=True)
    (tmp_path / "mean_bound.py").write_text(MODULE)
    (tmp_path / "conf" / "bound" / "mean.yaml").write_text("mean: {_target_: mean_bound.Mean, fault: ''}\n")
    (tmp_path / "conf" / "bound" / "kindless.yaml").write_text("kindless: {_target_: mean_bound.Kindless}\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("mean_bound", None)


def test_a_bound_of_ones_own_is_one_class_and_one_yaml(own, command):
    chosen = ["--config-dir", "conf", *SMALL, *FEW]
    code, out, err = command("fedsim-audit", *chosen, "bound=[mean]", "run_dir=run")
    assert code == 0, err
    assert "mean (theorem): 2 images." in out
    level = json.loads((own / "run" / "summary.json").read_text())["verdict"]["level"]
    assert level == "not tested", "only reconstruction robustness makes a run proven"
    for fault, reason in (("raises", "ZeroDivisionError: no images"), ("no json", "TypeError: Object of type Tensor")):
        code, out, err = command(
            "fedsim-audit", *chosen, "bound=[mean]", f"bound.mean.fault={fault}", f"run_dir={fault}"
        )
        assert code == 0, err
        (row,) = rows(own / fault, "bounds")
        assert row["status"] == "failed"
        assert row["reason"].startswith(reason)
    code, out, err = command("fedsim-audit", *chosen, "bound=[kindless]", "run_dir=kindless")
    assert code == 2
    assert "bound.kindless.kind=None: must be one of theorem, reference, local fact, test" in err


def test_from_python(tmp_path):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 5))
    images = torch.rand(8, 3, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 5
    bounds = ["determined", {"pairs": {"images": 1, "blurs": [1], "blocks": []}}, "reconstruction_robustness"]
    noise = {"gradient_noise": {"relative_norm": None, "std": 0.1}}
    found = fedsim.audit(
        model, images, ["labels"], [[], ["dp_sgd"], [noise]], bounds=bounds, num_images=2, run_dir=tmp_path / "runs"
    )
    states = {name: {row["bound"]: row["status"] for row in told} for name, told in found.bounds.items()}
    assert list(states.values()) == [
        {"determined": "done", "pairs": "refused", "reconstruction_robustness": "refused"},
        {"determined": "done", "pairs": "done", "reconstruction_robustness": "done"},
        {"determined": "done", "pairs": "done", "reconstruction_robustness": "refused"},
    ]
    assert [line.partition(":")[0] for line in found.verdicts.values()] == ["not tested", "proven", "not tested"]
    with pytest.raises(ConfigError, match="bounds=3"):
        fedsim.audit(model, images, ["labels"], bounds=[3], num_images=2)
