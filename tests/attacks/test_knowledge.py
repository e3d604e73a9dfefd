"""What an attack needs to know is declared beside its settings, and is none of them."""

from pathlib import Path

import pytest
import yaml

from attacks.building import build_attack
from experiments.engine.folders import comparable
from fedsim.errors import ConfigError
from fedsim.settings.knowledge import read_knowledge

ROOT = Path(__file__).parents[2]
FILES = [*ROOT.glob("conf/attack/*.yaml"), *ROOT.glob("tests/plugin_example/src/*/conf/attack/*.yaml")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_declares_it(path):
    (settings,) = yaml.safe_load(path.read_text()).values()
    known = read_knowledge("attack.x", settings)
    assert known
    assert len(set(known)) == len(known)
    assert all(words == words.strip() and "," not in words for words in known)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_smoothness_is_named_where_it_is_taken_for_granted(path):
    text = path.read_text()
    (settings,) = yaml.safe_load(text).values()
    if "priors.TotalVariation" in text or path.stem == "row_space":
        assert any("images are smooth" in words for words in read_knowledge("attack.x", settings))


def test_an_attack_is_built_with_it_and_without():
    settings = {"_target_": "attacks.analytic.PatchGradient", "levels": None}
    for declared in ({}, {"knows": ["the model"]}):
        assert build_attack("x", settings | declared).levels is None


@pytest.mark.parametrize("declared", ["the model", [1], [""], {"a": "b"}, None])
def test_what_is_no_list_of_words_is_refused(declared):
    with pytest.raises(ConfigError, match=r"attack\.x\.knows"):
        build_attack("x", {"_target_": "attacks.analytic.PatchGradient", "knows": declared})


def test_other_words_are_the_same_run():
    """A folder of an earlier version, or one whose words were mended, goes on."""
    one = {"_target_": "y", "steps": 1}
    assert comparable({"attack": {"x": one | {"knows": ["the model"]}}}) == comparable({"attack": {"x": one}})
    assert comparable({"attack": {"x": one}}) != comparable({"attack": {"x": one | {"steps": 2}}})
