"""Whatever somebody types: one line and exit code 2, or a sound run; and no worker is started to find out."""

import os
from collections import Counter

import pytest
from hypothesis import given

from tests.fuzz.command_lines import command_lines
from tests.fuzz.effort import effort

EXAMPLES = int(os.environ.get("FUZZ_CONFIGURATIONS", "12"))
"""The full number is 1,000: `FUZZ_CONFIGURATIONS=1000 pytest -s --timeout=0 tests/fuzz/test_configurations.py`."""


class Sound(Exception):  # noqa: N818 - all settings have been checked
    """Raised where the work would begin."""


@pytest.fixture
def judge(command, monkeypatch, tmp_path):
    """The line that refuses a command line; None where it is sound."""

    def begin(*_, **__):
        raise Sound

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ray.init", lambda *_, **__: pytest.fail("Ray was started"))
    for module in ("run", "audit"):
        monkeypatch.setattr(f"experiments.{module}.command.make_writer", begin)
    folders = iter(range(10**6))

    def call(name, arguments):
        try:
            code, out, err = command(name, f"run_dir={tmp_path}/run-{next(folders)}", *arguments)
        except Sound:
            return None
        assert code == 2, (code, err)
        assert "Traceback" not in out + err
        lines = [line for line in err.split("\n") if line.startswith("error: ")]
        assert len(lines) == 1, err
        return lines[0]

    return call


def test_one_clear_line_or_a_sound_run(judge):
    verdicts: Counter[str] = Counter()

    @effort(EXAMPLES)
    @given(command_lines())
    def run(typed):
        line = judge(*typed)
        verdicts["sound" if line is None else "refused"] += 1
        assert line is None or line.isprintable(), repr(line)

    run()
    print(dict(verdicts))
    assert verdicts["refused"] > 0
