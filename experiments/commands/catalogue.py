"""The options of the groups: fedsim's, those of plug-ins, and a user's own, as their files describe them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from hydra import initialize_config_module
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType

OWN = re.compile(r"file://([^'\",\]]+)")
LISTS = ("attack", "defense", "bound", "tracker")
"""Groups that take several options."""

PACKAGE_LINE = re.compile(r"#\s*@package\b")


@dataclass(frozen=True)
class Option:
    """One file of a group."""

    group: str
    name: str
    text: str

    @property
    def summary(self) -> str:
        """Its first comment lines as one line; empty where it has none."""
        lines = []
        for line in self.text.splitlines():
            if PACKAGE_LINE.match(line):
                continue
            if not line.startswith("#"):
                break
            lines.append(line.lstrip("# ").rstrip())
        return " ".join(filter(None, lines))

    @property
    def chosen(self) -> str:
        """The option as it is written on the command line."""
        return f"{self.group}=[{self.name}]" if self.group in LISTS else f"{self.group}={self.name}"

    @property
    def target(self) -> str:
        """The class that it builds; empty where it builds none."""
        found = re.search(r"^\s*_target_:\s*(\S+)", self.text, flags=re.MULTILINE)
        return found[1] if found else ""


class Catalogue:
    """Every group that a command knows, and its options.

    Args:
        config: the name of the command's main configuration.
        own: overrides that say where options of the user's own are.

    Attributes:
        main: the text of the main configuration.
        groups: those that it chooses from, in its order.
    """

    def __init__(self, config: str, own: Sequence[str] = ()) -> None:
        self.main = files("conf").joinpath(f"{config}.yaml").read_text("utf-8")
        GlobalHydra.instance().clear()
        with initialize_config_module("conf", version_base=None):
            loader = GlobalHydra.instance().config_loader()
            folders = [*_folders(loader), *(Path(folder) for word in own for folder in OWN.findall(word))]
            self.groups = {
                group: [
                    Option(group, name, _text(folders, f"{group}/{name}.yaml"))
                    for name in loader.get_group_options(group, ObjectType.CONFIG, config, list(own))
                ]
                for group in groups_of(self.main)
            }
        GlobalHydra.instance().clear()

    def find(self, name: str) -> list[Option]:
        """Options of this name in any group."""
        return [option for options in self.groups.values() for option in options if option.name == name]


def groups_of(main: str) -> list[str]:
    """The groups that a main configuration chooses from, by its text."""
    return re.findall(r"^  - (\w+):", main, flags=re.MULTILINE)


def _folders(loader: ConfigLoader) -> list[Traversable]:
    """Where Hydra looks, in packages and on disk; what it is told in Python has no text."""
    found: list[Traversable] = []
    for source in loader.get_sources():
        if source.scheme() == "pkg":
            found.append(files(source.path))
        elif source.scheme() == "file":
            found.append(Path(source.path))
    return found


def _text(folders: Sequence[Traversable], path: str) -> str:
    file = next((file for folder in folders if (file := folder.joinpath(path)).is_file()), None)
    return "" if file is None else file.read_text("utf-8")
