"""The attack and the defense of docs/adding.md, copied as a reader copies them."""

import re
import sys

import pytest

from tests.docs.blocks import ROOT
from tests.experiments.run_files import rows

PAGE = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")
SMALL = ("--config-dir", "conf", "data=digits", "model=vit_nano", "audit.num_images=2", "simulation=inline")


@pytest.fixture
def copied(tmp_path, monkeypatch):
    modules = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, flags=re.DOTALL)
    settings = re.findall(r"`conf/(\w+)/(\w+)\.yaml`:\n\n```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(modules) == len(settings) == 2
    for name, source in modules:
        (tmp_path / f"{name}.py").write_text(source)
    for group, name, text in settings:
        (tmp_path / "conf" / group).mkdir(parents=True)
        (tmp_path / "conf" / group / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name, _ in modules:
        sys.modules.pop(name, None)


def test_the_attack_works_as_printed(copied, command):
    code, out, err = command("fedsim-audit", *SMALL, "attack=[patch_gradient,mean_token]", "run_dir=run")
    assert code == 0, err
    assert out.strip().splitlines()[-1] == "run"
    (shown,) = re.findall(r"then the verdict and the report:\n\n```\n(.*?)```", PAGE, flags=re.DOTALL)
    assert _without_decimals(shown) in _without_decimals(out)
    results = {(row["attack"], row["client"]): row for row in rows(copied / "run", "attacks")}
    assert len(results) == 4
    for client in (0, 1):
        mean, exact = results[("mean_token", client)], results[("patch_gradient", client)]
        assert mean["status"] == exact["status"] == "done"
        assert mean["images"][0]["psnr"] < 30 < 80 < exact["images"][0]["psnr"]


def _without_decimals(text):
    """Without the digits that a machine's rounding moves."""
    return re.sub(r"\d+\.\d dB on average", "dB on average", text)


def test_the_defense_works_as_printed(copied, command):
    scores = {}
    for bits in (0, 4):
        chosen = ("defense=[round_bits]", f"defense.round_bits.bits={bits}", "attack=[patch_gradient]")
        code, _, err = command("fedsim-audit", *SMALL, *chosen, f"run_dir={bits}")
        assert code == 0, err
        scores[bits] = [row["images"][0]["psnr"] for row in rows(copied / str(bits), "attacks")]
    assert len(scores[4]) == 2
    assert max(scores[4]) < 40 < 80 < min(scores[0])
