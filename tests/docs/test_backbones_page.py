"""docs/backbones.md: its table is what the benchmark prints, and its models are as large as it says."""

import re

import pytest

import fedsim
from experiments.benchmarks.backbones import ATTACKS, FAMILIES, row
from fedsim.models import ModelSpec
from fedsim.models.architecture import parameter_count
from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs" / "backbones.md").read_text(encoding="utf-8")
LINES = [line for line in PAGE.splitlines() if re.match(r"\| .*: `\w+` \|", line)]
BRIEF = ("DINOv3", "EVA02, q, k, v apart", "SigLIP", "CLIP", "no positions")
"""Families of different outcomes; the command prints all."""


def test_every_family_has_its_line():
    assert [line[2:].partition(": `")[0] for line in LINES] == list(FAMILIES)
    assert all(line.count(" | ") == len(ATTACKS) + 2 for line in LINES)


@pytest.mark.parametrize("family", BRIEF)
def test_a_line_is_what_the_attacks_do(family):
    assert row(family) in LINES


@pytest.mark.parametrize("name", ["dinov3_tiny_8_32", "vit_reg_tiny_8_32", "beit_tiny_8_32"])
def test_models_are_as_large_as_the_page_says(name):
    settings = {**fedsim.load_config("audit", f"model={name}")["model"], "num_classes": 10}
    count = parameter_count(ModelSpec.from_dict(settings).build(0))
    assert re.search(rf"^\| `{name}` \|.*\| {count:,} \|$", PAGE, re.M)
