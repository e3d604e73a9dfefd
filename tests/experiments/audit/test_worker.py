"""Where a fault is said to be: in the line of whoever wrote it."""

import importlib.util
import statistics

import pytest

from experiments.audit.worker import where
from fedsim.errors import ConfigError

FAULTS = ("statistics.fmean([])", "torch.nn.Linear(2, 3)(torch.ones(5))", "1 / 0")
"""In the standard library, in a package, and in the line itself."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_by_the_line_of_its_author(tmp_path, fault):
    source = tmp_path / "own.py"
    source.write_text(f"import statistics, torch\n\ndef raises():\n    {fault}\n")
    spec = importlib.util.spec_from_file_location("own", source)
    own = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own)
    with pytest.raises((statistics.StatisticsError, RuntimeError, ZeroDivisionError)) as raised:
        own.raises()
    assert where(raised.value) == f"{type(raised.value).__name__}: {raised.value} in {source}:4"


def test_a_refused_setting_says_itself_where():
    assert where(ConfigError("a.b", 3, "at most 2")) == str(ConfigError("a.b", 3, "at most 2"))
