"""Both commands as a user calls them, in this process."""

import sys

import pytest

from experiments import audit, federated

SMALL = ["num_clients=4", "num_rounds=3", "evaluate_every=1", "observe.every=2"]


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """`command("fedsim", "key=value", …)`: exit code, standard output and errors."""

    def call(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        code = 0
        try:
            {"fedsim": federated.main, "fedsim-audit": audit.main}[name]()
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def fedsim(command, tmp_path):
    """A small federated run; gives its folder."""
    runs = iter(range(100))

    def call(*arguments):
        folder = tmp_path / f"run-{next(runs)}"
        code, out, err = command("fedsim", *SMALL, f"run_dir={folder}", *arguments)
        assert code == 0, err
        assert out.strip().splitlines()[-1] == str(folder)
        return folder

    return call
