"""The arrows of import point downwards."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.subprocess
def test_import_contracts():
    # In a process of its own: the linter disables all loggers of the one that it runs in.
    linter = Path(sys.executable).parent / "lint-imports"
    checkout = Path(__file__).parents[1]
    result = subprocess.run([linter, "--no-cache"], cwd=checkout, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 kept, 0 broken" in result.stdout
