"""The examples in the docstrings of the bounds print what they show."""

import doctest
from importlib import import_module

import pytest


@pytest.mark.parametrize("name", ["robustness", "robustness_wording", "two_points"])
def test_examples(name):
    found = doctest.testmod(import_module(f"fedsim.bounds.{name}"))
    assert found.attempted > 0
    assert found.failed == 0
