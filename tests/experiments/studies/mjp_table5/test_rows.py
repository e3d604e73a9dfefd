"""The rows of MJP's Table 5."""

import pytest

from experiments.studies.harness.options import matching
from experiments.studies.mjp_table5.rows import PAPER, plan
from fedsim.errors import ConfigError


def test_every_row_of_the_paper_once():
    rows = plan([0.9])
    printed = [row for row in rows if row.published is not None]
    assert [row.name for row in printed] == list(PAPER)
    assert {row.attack for row in printed} == {"april", "april_told"}
    assert all(row.case.variant == "april" for row in printed)
    stock = {"patch_gradient", "patch_gradient_told", "adaptive"}
    assert {row.attack for row in rows if row.name == "mjp.b"} == {"april_told", *stock}
    assert {row.attack for row in rows if row.name == "mjp.a"} == {"april", "april_told", *stock}
    assert {row.attack for row in rows if row.name == "deit_s.a"} == {"april", "patch_gradient"}


def test_settings_compare_what_the_paper_compares():
    for row in plan([0.9, 0.1]):
        if row.name != "mjp_without.a" and not row.name.startswith("baseline"):
            assert (row.case.ratio is None) == (row.setting == "a")
            assert row.against == ("seen" if row.setting == "b" else "private")


def test_further_ratios_add_rows_of_mjp_alone_and_a_guess():
    more = set(plan([0.9, 0.1])) - set(plan([0.9]))
    assert {row.name for row in more} == {"mjp@0.1.b", "mjp@0.1.c", "baseline@0.1.b"}
    assert {row.case.ratio for row in more} == {0.1}


def test_globs():
    rows = plan([0.9, 0.1])
    assert matching("--rows", rows, None) == rows
    assert {row.name for row in matching("--rows", rows, ["*.c", "vit*"])} == {
        "vit_s.a",
        "vit_s.b",
        "mjp.c",
        "mjp@0.1.c",
    }
    with pytest.raises(ConfigError, match=r"mjp@0\.5"):
        matching("--rows", rows, ["mjp.a", "mjp@0.5*"])


def test_cases_name_what_is_shared():
    cases = {row.case.name: row.case.overrides(("one", "two")) for row in plan([0.9])}
    assert cases["vit_s-stock-x"] == ["model=one", "model.variant=stock", "defense=[]"]
    assert cases["no_pe-april-jigsawed0.9"][1:3] == ["model.variant=april", "defense=[no_pe,mjp_jp]"]
    assert cases["mjp-stock-x"][-1] == "defense.mjp.probability=0.0"
    assert cases["mjp-stock-jigsawed0.9"][-1] == "defense.mjp.ratio=0.9"
