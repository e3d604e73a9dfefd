"""What an attack needs to know beside the shared tensors and the protocol, as its settings declare it."""

from collections.abc import Mapping
from typing import Any

from fedsim.errors import ConfigError

KNOWS = "knows"


def read_knowledge(key: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The declaration; empty where a plug-in has none.

    Args:
        key: the full name of the settings, `attack.dlg`.

    Raises:
        ConfigError: it is no list of words.
    """
    declared = settings.get(KNOWS, [])
    if not isinstance(declared, list) or not all(isinstance(words, str) and words.strip() for words in declared):
        raise ConfigError(f"{key}.{KNOWS}", declared, "a list of what the attack needs to know, in words")
    return tuple(declared)


def without_knowledge(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings less the declaration: what the attack is built from, and all that its results depend on."""
    return {key: value for key, value in settings.items() if key != KNOWS}
