"""Where log records go."""

import logging
from pathlib import Path

import pytest

from experiments.cli.logs import libraries_silenced, log_to, quiet_libraries


@pytest.mark.parametrize("name", ["flwr", "hydra.utils"])
def test_libraries_write_to_the_runs_log_and_nowhere_else(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's own hide what Python prints for want of any
    logger = logging.getLogger(name)
    monkeypatch.setattr(logger, "handlers", [logging.StreamHandler()])
    quiet_libraries()
    logger.error("before the run")
    with log_to(tmp_path / "run.log"):
        logger.error("in the run")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
    text = (tmp_path / "run.log").read_text(encoding="utf-8")
    assert "in the run" in text
    assert "before the run" not in text


def test_a_python_session_has_its_librarys_output_back(monkeypatch, capsys):
    logger = logging.getLogger("flwr")
    monkeypatch.setattr(logger, "handlers", [logging.StreamHandler()])
    monkeypatch.setattr(logger, "propagate", False)
    with libraries_silenced():
        logger.error("in the run")
    logger.error("after it")
    assert capsys.readouterr().err == "after it\n"
    assert logger.propagate is False


def test_a_log_on_a_full_disk_puts_no_traceback_on_the_terminal(capsys):
    with log_to(Path("/dev/full")):
        logging.getLogger("fedsim").error("lost")
    assert capsys.readouterr().err == ""
