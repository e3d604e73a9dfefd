"""Settings in groups: the same object from the group and from its settings, and no mixture of the two."""

import inspect
from dataclasses import dataclass

import pytest

from attacks.generative import GGL, GIAS, GIFD
from attacks.optimization import Budget, Descent, GradientMatching, Matching
from fedsim.errors import ConfigError
from fedsim.settings.components import build_component, check_settings
from fedsim.settings.grouped import SettingsGroup, grouped


@dataclass(frozen=True)
class Size(SettingsGroup):
    width: int
    height: int = 2


class Sheet:
    @grouped
    def __init__(self, size: Size, name: str = "a") -> None:
        self.size, self.name = size, name


def test_a_group_and_its_settings_are_the_same():
    assert Sheet(width=3).size == Sheet(Size(3)).size == Sheet(size=Size(3)).size == Size(3)
    assert Sheet(width=3, name="b").name == Sheet(Size(3), "b").name == "b"
    assert list(inspect.signature(Sheet).parameters) == ["name", "width", "height"]


def test_both_at_once_are_refused_and_so_is_nothing():
    for args, given in (((Size(3),), {"height": 1}), ((), {"size": Size(3), "width": 1})):
        with pytest.raises(TypeError, match="size is given"):
            Sheet(*args, **given)
    with pytest.raises(TypeError, match="width"):
        Sheet()
    with pytest.raises(TypeError, match="depth"):
        Sheet(width=1, depth=1)


def test_a_configuration_is_checked_setting_by_setting():
    matching = {"_target_": "attacks.optimization.GradientMatching"}
    built = build_component("attack.x", {**matching, "steps": 5, "frames": 0, "labels": "joint"}, GradientMatching)
    assert (built.search, built.budget, built.problem) == (Descent(steps=5), Budget(frames=0), Matching(labels="joint"))
    for wrong, words in (
        ({"stepss": 5}, r"attack\.x\.stepss.*Did you mean 'steps'"),
        ({"steps": "many"}, r"attack\.x\.steps.*a whole number"),
        ({"search": 3}, r"attack\.x\.search"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_settings("attack.x", {**matching, **wrong})
    with pytest.raises(ConfigError, match=r"attack\.x\.steps"):
        build_component("attack.x", {**matching, "steps": 0}, GradientMatching)
    with pytest.raises(ConfigError, match=r"attack\.x\.generator.*missing"):
        check_settings("attack.x", {"_target_": "attacks.generative.GIAS"})


@pytest.mark.parametrize("attack", [GradientMatching, GIAS, GIFD, GGL])
def test_a_search_is_told_its_budget_by_the_same_words(attack):
    found, own = inspect.signature(attack).parameters, inspect.signature(Budget).parameters
    assert all(found[name].default == own[name].default for name in own)
