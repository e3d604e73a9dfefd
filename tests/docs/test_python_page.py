"""The examples of docs/python.md, one after the other, as a reader runs them."""

import re
from pathlib import Path

import matplotlib as mpl
import pytest
import torch

import fedsim
from tests.docs.blocks import ROOT, blocks, without_bound

STEPS = " steps=50)", " steps=2)"
AUDITED = "num_images=4)", "num_images=1)"
MODEL = 'timm.create_model("vit_small_patch32_224", num_classes=10'
EXAMPLES = [block.body for block in blocks("python") if block.path == "docs/python.md"]
ONE = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)), [3]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict:
    """What the examples before the run of a federation leave behind; two steps of 50, one audited image of four.

    After the first example, whose result the page shows, its model has two blocks of twelve.
    """
    monkeypatch.chdir(tmp_path)
    left: dict = {"__name__": "page"}
    with mpl.rc_context({"backend": "agg"}):
        for number, code in enumerate(EXAMPLES):
            if "fedsim.run(" in code:
                continue
            code = code.replace(*STEPS).replace(*AUDITED).replace(MODEL, MODEL if not number else f"{MODEL}, depth=2")
            exec(compile(code, f"docs/python.md:{number}", "exec"), left)
            if not number:
                exec(f"model = {MODEL}, depth=2)", left)
    return left


def test_they_run_and_find_what_the_page_says(names, capsys, tmp_path):
    assert PAGE.count(STEPS[0]) == PAGE.count(AUDITED[0]) == 1
    assert PAGE.count(MODEL) == 2
    said = capsys.readouterr().out
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)
    first, _, _ = said.partition("\n")
    assert without_bound(first.rpartition(", ")[0]) == without_bound(shown.strip().rpartition(", ")[0])
    reasons = re.findall(r"\.reason.*\)  # (.*)", PAGE)
    assert len(reasons) == 2
    for reason in reasons:
        assert f"\n{reason}\n" in said
    own = fedsim.attack("patch_gradient", fedsim.observe(names["OwnViT"](), *ONE, roles=names["roles"]))
    assert own.certified, own.reason
    assert (tmp_path / "leak.html").is_file()
    assert len(names["audit"].table) == 4
