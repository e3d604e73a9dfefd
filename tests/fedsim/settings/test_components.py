"""What a user's settings may get wrong, named by the full key."""

from abc import ABC, abstractmethod
from typing import Any

import pytest

from fedsim.errors import ConfigError
from fedsim.settings.components import build_component


class Part:
    def __init__(self, weight: float = 1.0) -> None:
        if weight < 0:
            raise ConfigError("part.weight", weight, "0 or more")


class Thing:
    def __init__(
        self,
        size: int,
        name: str = "a",
        limit: float | int | None = None,
        part: Part | None = None,
        parts: dict[str, Part | None] | None = None,
        anything: Any = None,
        flag: bool = False,
    ) -> None:
        if size > 9:
            raise ConfigError("size", size, "at most 9")
        if anything == "boom":
            raise RuntimeError("went off")
        self.size = size


def thing(**settings: Any) -> Thing:
    return build_component("group.thing", {"_target_": f"{__name__}.Thing", **settings}, Thing)


PART = f"{__name__}.Part"


@pytest.mark.parametrize(
    "settings",
    [
        {"size": 1},
        {"size": 1, "limit": 2, "flag": True, "anything": [1, {"a": 2}]},
        {"size": 1, "limit": None, "part": {"_target_": PART, "weight": 3}},
        {"size": 1, "parts": {"a": {"_target_": PART}, "b": None}},
    ],
)
def test_settings_that_fit(settings: dict[str, Any]) -> None:
    assert thing(**settings).size == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": "ten"}, "group.thing.size=ten: must be a whole number"),
        ({"size": True}, "group.thing.size=True: must be a whole number"),
        ({"size": 1.5}, "group.thing.size=1.5: must be a whole number"),
        ({}, "group.thing.size=: missing; it has no default"),
        ({"size": 1, "limit": "much"}, "group.thing.limit=much: must be a number or null"),
        ({"size": 1, "flag": "perhaps"}, "group.thing.flag=perhaps: must be true or false"),
        ({"size": 1, "part": "l2"}, "group.thing.part=l2: must be a Part by its _target_ or null"),
        ({"size": 1, "nmae": "b"}, "group.thing.nmae=b: there is no such setting. Did you mean 'name'?"),
        ({"size": 1, "xyz": 2}, "group.thing.xyz=2: there is no such setting. There are size, "),
        ({"size": 10}, "group.thing.size=10: must be at most 9"),
        ({"size": 1, "part": {"_target_": PART, "weight": "w"}}, "group.thing.part.weight=w: must be a number"),
        ({"size": 1, "part": {"_target_": PART, "weight": -1.0}}, "group.thing.part.weight=-1.0: must be 0 or more"),
        (
            {"size": 1, "parts": {"a": {"_target_": PART, "weight": -1.0}}},
            "group.thing.parts.a.weight=-1.0: must be 0 or more",
        ),
        ({"size": 1, "anything": "boom"}, "group.thing=went off: must be settings that fit"),
        ({"size": 1, "part": {"_target_": "no.such.Class"}}, "group.thing.part._target_=no.such.Class: must be a"),
    ],
)
def test_settings_that_do_not(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        thing(**settings)
    assert str(refused.value).startswith(message)


def test_another_class() -> None:
    with pytest.raises(ConfigError, match=r"group\.thing\._target_=.*Part: must be a subclass of .*Thing"):
        build_component("group.thing", {"_target_": PART}, Thing)


def test_a_module_that_python_does_not_find_is_said_where_to_put() -> None:
    told = "Python finds no module elsewhere_alone, and its file must be in this folder or on PYTHONPATH"
    with pytest.raises(ConfigError, match=rf"^attack\.mine\._target_=elsewhere_alone\.Mine: .*: {told}$"):
        build_component("attack.mine", {"_target_": "elsewhere_alone.Mine"}, Thing)
    told = rf"a class that can be imported: {__name__} has no Thign\. Did you mean 'Thing'\?$"
    with pytest.raises(ConfigError, match=told):
        build_component("attack.mine", {"_target_": f"{__name__}.Thign"}, Thing)


class Abstract(ABC):
    @abstractmethod
    def run(self) -> None: ...


def test_a_class_that_lacks_a_method_is_told_which() -> None:
    with pytest.raises(ConfigError, match=r"^group\.thing\._target_=Abstract: must be a class that defines run$"):
        build_component("group.thing", {"_target_": f"{__name__}.Abstract"}, Abstract)
