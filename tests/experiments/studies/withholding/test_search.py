"""Candidates, and the search for what must be withheld, on attacks whose needs are known."""

from itertools import chain, combinations

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from experiments.studies.harness.ledger import Ledger
from experiments.studies.withholding import search as withholding_search
from experiments.studies.withholding.search import Audits, Leak, candidates, search
from fedsim.errors import RunError
from fedsim.models import ModelSpec
from fedsim.result import AttackResult

GROUPS = dict.fromkeys("abcdef", ())


class Known:
    """Audits in which an attack succeeds where one of its sets is shared whole."""

    groups = GROUPS
    guesses = (10.0, 12.0)

    def __init__(self, needs):
        self.needs, self.asked = needs, 0

    def leak(self, withheld, attack):
        self.asked += 1
        through = any(not withheld & set(need) for need in self.needs[attack])
        return Leak(attack, (40.0, 40.0) if through else (10.5, None), 0, "")


def by_definition(needs):
    subsets = chain.from_iterable(combinations(GROUPS, size) for size in range(len(GROUPS)))
    every = [set(need) for sets in needs.values() for need in sets]
    stopping = [frozenset(subset) for subset in subsets if all(need & set(subset) for need in every)]
    least = min((len(subset) for subset in stopping), default=None)
    return {subset for subset in stopping if len(subset) == least}


@pytest.mark.parametrize(
    "needs",
    [
        {"one": ["ab"], "two": ["bc"]},
        {"one": ["ab"], "two": ["bc", "a"]},
        {"one": ["abc", "cde"], "two": ["ad", "be", "f"]},
        {"one": ["a", "b", "c"]},
        {"one": []},
    ],
)
def test_all_smallest_sets(needs):
    audits = Known(needs)
    found = search(audits, list(needs), 3.0, lambda text: None)
    assert set(found.smallest) == by_definition(needs)
    for attack, sets in found.needs.items():
        assert {frozenset(need) for need in sets} <= {frozenset(need) for need in needs[attack]}
    assert audits.asked < 100


def test_where_nothing_that_leaves_something_to_share_is_enough():
    assert search(Known({"one": list("abcdef")}), ["one"], 3.0, lambda text: None).smallest == []


def test_a_certified_picture_is_a_leak_however_the_mean_is():
    assert Leak("one", (10.0, 10.0), 1, "").succeeds((10.0, 10.0), 3.0)
    assert not Leak("one", (14.0, 10.0), 0, "").succeeds((10.0, 10.0), 3.0)
    assert Leak("one", (14.0, None), 0, "").succeeds((10.0, 30.0), 3.0)
    assert not Leak("one", (None, None), 0, "refused").succeeds((10.0, 10.0), 3.0)


@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec("vit_nano_patch2_8", 5),
        ModelSpec("vit_nano_patch2_8", 5, variant="april"),
        ModelSpec(
            "vit_small_patch16_224", 5, 32, 8, kwargs={"depth": 2, "embed_dim": 24, "num_heads": 2, "reg_tokens": 2}
        ),
        ModelSpec("mlp_32", 5, kwargs={"hidden": [8, 8]}),
    ],
)
def test_every_parameter_stands_in_one_group(spec):
    with torch.device("cpu"):
        model = spec.build(0)
    groups = candidates(model)
    listed = [name for names in groups.values() for name in names]
    assert sorted(listed) == sorted(name for name, _ in model.named_parameters())
    assert all(groups.values())


def test_groups_of_a_vit_are_roles():
    groups = candidates(ModelSpec("vit_nano_patch2_8", 5).build(0))
    assert groups["pos_embed"] == ("pos_embed",)
    assert groups["patch_weight"] == ("patch_embed.proj.weight",)
    assert groups["qkv_weight"] == ("blocks.0.attn.qkv.weight",)
    assert groups["first_mlp"][0].startswith("blocks.0.norm2") or groups["first_mlp"][0].startswith("blocks.0.mlp")
    assert "blocks.1.attn.qkv.weight" in groups["later_qkv"]
    assert "head.bias" in groups["head"]


@pytest.fixture
def audits(tmp_path):
    """Of one picture, from what the ledger of earlier calls holds."""
    with initialize_config_module("conf", version_base=None):
        overrides = ["model=vit_nano", "data=digits", "simulation=inline", "run_dir=unused", "attack=[patch_gradient]"]
        composed = compose("audit", overrides=[*overrides, "tracker=[]", "audit.num_images=1"])
        config = OmegaConf.to_container(composed, resolve=True)
    return lambda: Audits("stock", config, Ledger(tmp_path / "results.jsonl"))


def test_results_name_the_code_that_ran_whatever_is_checked_out_meanwhile(audits, monkeypatch):
    by = {"now": "one"}
    monkeypatch.setattr(withholding_search, "code_and_machine", lambda device: by["now"])
    asked = audits()
    by["now"] = "another"
    asked.leak(frozenset(), "patch_gradient")
    assert [entry["by"] for entry in asked._ledger.entries] == ["one"]


def test_a_crash_stops_nothing_and_is_tried_again(audits, monkeypatch):
    """Else the smallest set that stops an attack that always crashes would be the empty one."""
    with monkeypatch.context() as patched:
        crashed = AttackResult("o", "a", "failed", "RuntimeError: boom\n<trace>")
        patched.setattr(withholding_search, "run_attack", lambda *arguments: crashed)
        first = audits()
        with pytest.raises(RunError, match=r"patch_gradient failed \(stock, .*withheld nothing\): RuntimeError: boom;"):
            search(first, ["patch_gradient"], 3.0, lambda text: None)
    for again in (first, audits()):  # by the same call, and by a later one from what the first has written
        assert again.leak(frozenset(), "patch_gradient").psnrs[0] > 100
    found = search(audits(), ["patch_gradient"], 3.0, lambda text: None)
    assert found.smallest
    assert frozenset() not in found.smallest
