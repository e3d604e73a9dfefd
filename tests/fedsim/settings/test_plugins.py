"""Which modules fedsim imports without being asked."""

import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from fedsim.errors import ConfigError
from fedsim.models import ModelSpec
from fedsim.settings import plugins

MODEL = """
from timm.models import register_model
from torch import nn

@register_model
def {name}(pretrained=False, **kwargs):
    return nn.Linear(1, 1)
"""


@pytest.fixture
def declared(monkeypatch, tmp_path):
    """Declare a module with this code, as an installed package does."""
    monkeypatch.syspath_prepend(tmp_path)
    points = []
    monkeypatch.setattr(plugins, "entry_points", lambda group: points if group == plugins.GROUP else [])
    plugins.load_plugins.cache_clear()

    def declare(name, code):
        (tmp_path / f"{name}.py").write_text(code)
        points.append(EntryPoint(name, name, plugins.GROUP))

    yield declare
    for point in points:
        sys.modules.pop(point.value, None)
    plugins.load_plugins.cache_clear()


def test_models_of_plugins_are_found_when_they_are_asked_for(declared):
    with pytest.raises(ConfigError, match="no such model"):
        ModelSpec("of_a_plugin", 2).check()
    plugins.load_plugins.cache_clear()
    declared("plugin_with_a_model", MODEL.format(name="of_a_plugin"))
    ModelSpec("vit_nano_patch2_8", 2).check()
    assert "plugin_with_a_model" not in sys.modules
    ModelSpec("of_a_plugin", 2).check()


def test_the_model_of_the_documentation_as_a_reader_copies_it(declared):
    page = (Path(__file__).parents[3] / "docs" / "extending.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n((?:(?!```).)*class MyNet.*?)```", page, re.DOTALL)
    declared("plugin_of_the_page", code[1])
    with pytest.raises(ConfigError, match=r"A model of your own is registered .*docs/extending.md"):
        ModelSpec("my_nett", 3).check()
    model = ModelSpec("my_net", 3, img_size=32, kwargs={"hidden": 8}).build(0)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 3)


@pytest.mark.parametrize("code", ["import no_such_module", "1 / 0"])
def test_one_that_cannot_be_imported_is_named(declared, code):
    declared("broken_plugin", code)
    with pytest.raises(ConfigError, match=r"fedsim\.plugins\.broken_plugin=broken_plugin: .*Error"):
        plugins.load_plugins()
