"""Code of other installed packages that fedsim has to know without anybody naming it in the settings."""

from functools import cache
from importlib.metadata import entry_points

from fedsim.errors import ConfigError

GROUP = "fedsim.plugins"
"""Entry points: modules whose import defines defenses (for observations on disk) or registers models with timm."""


@cache
def load_plugins() -> None:
    """Import the modules that installed packages declare.

    What is imported is thus chosen by whoever installed the packages, never by a file that a run reads.

    Raises:
        ConfigError: one cannot be imported; names it.
    """
    for point in sorted(entry_points(group=GROUP)):
        try:
            point.load()
        except Exception as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConfigError(f"{GROUP}.{point.name}", point.value, f"a module that can be imported ({why})") from error
