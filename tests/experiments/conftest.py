"""Both commands as a user calls them, in this process."""

import pytest

from tests.experiments.run_files import SMALL_AUDIT

SMALL = ["num_clients=4", "num_rounds=3", "evaluate_every=1", "observe.every=2"]


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


@pytest.fixture
def audit(command, tmp_path):
    """A small audit in the process; gives its folder."""
    runs = iter(range(100))

    def call(*arguments, folder=None):
        folder = folder or tmp_path / f"audit-{next(runs)}"
        code, out, err = command("fedsim-audit", f"run_dir={folder}", *SMALL_AUDIT, *arguments)
        assert code == 0, err
        assert out.strip().splitlines()[-1] == str(folder)
        return folder

    return call
