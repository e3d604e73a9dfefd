"""The README's examples, run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.experiments.run_files import rows

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands():
    lines = [line.split("#")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    # The example attack is not part of the product: its command has the test above.
    return [line for line in lines if line.startswith("fedsim") and "mean_token" not in line]


@pytest.mark.subprocess
@pytest.mark.subprocess
def test_the_example_attack_works_as_printed(tmp_path):
    (source,) = blocks("python")
    (yaml,) = blocks("yaml")
    (tmp_path / "mean_token.py").write_text(source)
    (tmp_path / "conf" / "attack").mkdir(parents=True)
    (tmp_path / "conf" / "attack" / "mean_token.yaml").write_text(yaml)
    executable = Path(sys.executable).parent / "fedsim-audit"
    arguments = ["--config-dir", "conf", "attack=[patch_gradient,mean_token]", "data=digits", "model=vit_nano"]
    arguments += ["audit.num_images=2", "run_dir=run"]
    result = subprocess.run([executable, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().splitlines()[-1] == "run"
    results = {(row["attack"], row["client"]): row for row in rows(tmp_path / "run", "attacks")}
    assert len(results) == 4
    for client in (0, 1):
        mean, exact = results[("mean_token", client)], results[("patch_gradient", client)]
        assert mean["status"] == exact["status"] == "done"
        assert mean["images"][0]["psnr"] < 30 < 80 < exact["images"][0]["psnr"]


@pytest.mark.parametrize("line", commands())
def test_every_command_composes(line, command, monkeypatch):
    """Composed, not run: runs of each kind have tests of their own."""
    words = [word.strip("'") for word in line.split()]
    if "-m" in words:
        words.remove("-m")
        words = [word for word in words if "],[" not in word]
    code, out, err = command(*words, "--cfg", "job")
    assert code == 0, err
    assert "run_dir:" in out


def test_pictures_are_there():
    for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README):
        assert (Path(__file__).parents[1] / path).is_file(), path
