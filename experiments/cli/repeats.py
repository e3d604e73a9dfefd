"""Options named twice in one list, and keys given twice: Hydra would take one of them and say nothing."""

from collections.abc import Iterable
from importlib.resources import files

from hydra.core.override_parser.overrides_parser import OverridesParser

from fedsim.errors import ConfigError


def refuse_repeats(overrides: Iterable[str]) -> None:
    """Raises ConfigError: a list of options, as in `defense=[half,half]`, has one of them twice."""
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        value = None if override.is_delete() or override.is_sweep_override() else override.value()
        if not isinstance(value, list) or not files("conf").joinpath(override.key_or_group).is_dir():
            continue
        again = [one for place, one in enumerate(value) if one in value[:place]]
        if again:
            wanted = f"each name once: {again[0]} is there twice, and its settings are under one key"
            raise ConfigError(override.key_or_group, f"[{','.join(map(str, value))}]", wanted)


def given_twice(overrides: Iterable[str]) -> list[str]:
    """What to say of keys that are set more than once: `num_rounds=2 counts, not num_rounds=1 before it`.

    Said and not refused: who adds to a call in a script of somebody else's overrides it so.
    """
    last: dict[tuple[str, str | None], str] = {}
    said = []
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if override.is_delete():
            continue
        key, words = (override.key_or_group, override.package), str(override.input_line)
        if last.get(key, words) != words:
            said.append(f"{words} counts, not {last[key]} before it")
        last[key] = words
    return said
