"""Flags among settings."""

import signal
import subprocess
import sys

import pytest

from experiments.commands.flags import flags_last, shows_only


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("seed=1 -m defense=[],[half]", "seed=1 defense=[],[half] -m"),
        ("--config-dir conf seed=1 --cfg job data=digits", "seed=1 data=digits --config-dir conf --cfg job"),
        ("--config-d conf seed=1", "seed=1 --config-d conf"),
        ("seed=1 --info", "seed=1 --info"),
        ("--cfg=job seed=1", "seed=1 --cfg=job"),
    ],
)
def test_settings_stand_together(given, taken):
    assert flags_last(given.split()) == taken.split()


@pytest.mark.parametrize(("given", "shown"), [("seed=1 --info", True), ("--cfg=job", True), ("-m seed=1,2", False)])
def test_what_runs_nothing(given, shown):
    assert shows_only(given.split()) is shown


@pytest.mark.subprocess
def test_the_end_of_a_pipe_ends_what_is_shown(tmp_path):
    call = "from experiments.commands import fedsim; fedsim()"
    shown = subprocess.Popen(
        [sys.executable, "-c", call, "--info"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    )
    shown.stdout.close()
    assert shown.stderr.read() == b""
    shown.stderr.close()
    assert shown.wait() == -signal.SIGPIPE


@pytest.mark.parametrize("own", ["hydra.sweeper.params={seed: '1,2'}", "+hydra.sweeper.params.seed='1,2'"])
def test_hydras_own_parameters_of_a_sweep_are_refused_in_one_line(command, own):
    code, _, said = command("fedsim", "-m", own)
    assert code == 2
    assert said.strip() == f"error: {own}: a sweep is written -m KEY=ONE,TWO"
