"""The list of slow tests names tests that there are."""

import ast
from pathlib import Path

import pytest

from tests.support.slow import of_report, read

ROOT = Path(__file__).parents[1]


def test_every_line_names_a_test():
    for path in {name.partition("::")[0] for name in read()}:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        listed = {name.partition("::")[2] for name in read() if name.startswith(f"{path}::")}
        assert listed <= there, path


@pytest.mark.parametrize(("seconds", "listed"), [(0.15, []), (0.25, ["tests/a/test_b.py::test_c"])])
def test_parameters_count_together(tmp_path, seconds, listed):
    line = '<testcase classname="tests.a.test_b" name="test_c{}" time="{}"/>'
    cases = "".join(line.format(name, seconds) for name in ("[0]", "@commands"))
    (tmp_path / "report.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert of_report(tmp_path / "report.xml") == listed
