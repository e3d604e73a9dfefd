"""Ctrl-C and SIGTERM in processes of their own: one line, exit code 130, whatever the main thread is at."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from experiments.commands.stage import CommandStage

START = """
    import os, signal, sys, threading, time
    from pathlib import Path
    from experiments.commands import interrupt
    from experiments.commands.stage import CommandStage

    interrupt.SECONDS_TO_CLOSE = 0.3
    stage = CommandStage("fedsim-audit", resumes=True)
    interrupt.CtrlC(stage)

    def begun():
        Path("run").mkdir()
        stage.begin(Path("run"))

    def press():
        os.kill(os.getpid(), signal.{number})

    def hang():
        while True:
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                pass
"""

CASES = {
    "before the work begins, as in imports": ("press(); time.sleep(60)", "interrupted before anything started"),
    "an exception leaves in order": (
        """
        begun()
        try:
            press(); time.sleep(60)
        except KeyboardInterrupt:
            print(stage.interrupted(), file=sys.stderr, flush=True)
            os._exit(130)
        """,
        "interrupted: what had finished is in run; the same command with run_dir=run goes on",
    ),
    "what swallows it is ended": (
        """
        begun()
        try:
            press(); time.sleep(60)
        except KeyboardInterrupt:
            time.sleep(60)
        """,
        "interrupted: what had finished is in run; the same command with run_dir=run goes on",
    ),
    "standard error is turned elsewhere": (
        "begun(); os.dup2(os.open(os.devnull, os.O_WRONLY), 2); threading.Timer(0.1, press).start(); hang()",
        "interrupted: what had finished is in run; the same command with run_dir=run goes on",
    ),
}


def run(body, number, folder):
    program = textwrap.dedent(START).replace("{number}", number) + textwrap.dedent(body)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    call = [sys.executable, "-c", program]
    return subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, timeout=30)


@pytest.mark.subprocess
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("case", CASES)
def test_one_line_and_130(case, number, tmp_path):
    body, words = CASES[case]
    done = run(body, number, tmp_path)
    assert (done.returncode, done.stderr.strip()) == (130, words)


@pytest.mark.subprocess
def test_a_process_that_a_plug_in_ends_by_sigterm_does_not_end_the_command(tmp_path):
    body = """
    begun()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, b"!")
        time.sleep(60)
    os.read(read, 1)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    time.sleep(2 * interrupt.SECONDS_TO_CLOSE)
    os._exit(status)
    """
    done = run(body, "SIGTERM", tmp_path)
    assert (done.returncode, done.stderr) == (signal.SIGTERM, "")


def test_what_is_said_of_a_federated_run(tmp_path):
    stage = CommandStage("fedsim")
    assert stage.interrupted() == "interrupted before anything started"
    stage.begin(tmp_path)
    assert "another run_dir begins anew" in stage.interrupted()
    (tmp_path / "config.yaml").write_text("resume_every_seconds: null\n")
    assert "another run_dir begins anew" in stage.interrupted()
    (tmp_path / "config.yaml").write_text("resume_every_seconds: 30\n")
    assert stage.interrupted().endswith(f"fedsim resume={tmp_path} begins anew there")
    (tmp_path / "resume" / "round-00003").mkdir(parents=True)
    assert stage.interrupted().endswith(f"fedsim resume={tmp_path} goes on")


def test_measures_are_kept_once_they_are_written(tmp_path):
    stage = CommandStage("fedsim-measure", open=True, folder=tmp_path)
    assert stage.interrupted() == (
        f"interrupted: nothing is kept yet; the same command with run_dir={tmp_path} begins anew"
    )
    (tmp_path / "measures.json").write_text("{}")
    assert "what had finished is in" in stage.interrupted()


@pytest.mark.subprocess
def test_the_exit_code_of_a_command_is_that_of_its_process(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    call = [sys.executable, "-c", "from experiments.commands import fedsim_report; fedsim_report()", "nowhere"]
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "error: no folder at nowhere\n")
