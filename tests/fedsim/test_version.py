"""One version, in the two places that need it."""

import tomllib
from pathlib import Path

import fedsim


def test_the_project_and_the_package_agree():
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    assert project["version"] == fedsim.__version__
