"""Options that are named twice in one list: Hydra would take them once and say nothing."""

from collections.abc import Iterable

from hydra.core.override_parser.overrides_parser import OverridesParser

from fedsim.errors import ConfigError


def refuse_repeats(overrides: Iterable[str]) -> None:
    """Raises ConfigError: a list of options, as in `defense=[half,half]`, has one of them twice."""
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        value = None if override.is_delete() or override.is_sweep_override() else override.value()
        if "." in override.key_or_group or not isinstance(value, list):
            continue
        again = [one for place, one in enumerate(value) if one in value[:place]]
        if again:
            wanted = f"each name once: {again[0]} is there twice, and its settings are under one key"
            raise ConfigError(override.key_or_group, f"[{','.join(map(str, value))}]", wanted)
