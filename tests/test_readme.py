"""What the README promises: its length, its links and pictures, and commands that exist."""

import re
from pathlib import Path

import pytest

from tests.docs.blocks import without_bound

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINES = 120
"""So many a visitor reads."""


def commands():
    blocks = re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("fedsim")]


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


def test_it_is_short():
    assert len(README.splitlines()) <= LINES


def test_links_and_pictures_are_there():
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", README)]
    inside = [link for link in links if not link.startswith("https://")]
    assert len(inside) > 15
    for link in inside:
        assert (ROOT / link).is_file(), link


def test_the_five_lines_print_what_they_show(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # they save a picture
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    printed, expected = (
        text.strip().rpartition(", ")[0] for text in (capsys.readouterr().out, shown)
    )  # less the seconds
    assert without_bound(printed) == without_bound(expected)
