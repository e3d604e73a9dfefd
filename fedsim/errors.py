"""The two ways in which fedsim says no."""

import difflib
from collections.abc import Collection, Iterable

LONGEST = 300
"""Characters of a value that an error repeats: paths are whole, tensors and observations are not."""


class ConfigError(Exception):
    """A setting that cannot work, in one line: `KEY=VALUE: must be EXPECTED`, or the fault where that says more."""

    def __init__(self, key: str, value: object, expected: str = "", fault: str = "") -> None:
        said = str(value)
        said = said if len(said) <= LONGEST else f"{said[:LONGEST]} …"
        super().__init__(f"{key}={said}: {fault or f'must be {expected}'}")
        self.key, self.value, self.expected, self.fault = key, value, expected, fault

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[str, object, str, str]]:
        return ConfigError, (self.key, str(self.value), self.expected, self.fault)

    def under(self, key: str) -> "ConfigError":
        """The same of a setting that users know by another key."""
        return ConfigError(key, self.value, self.expected, self.fault)


def require(key: str, value: object, good: bool, expected: str) -> None:
    """Raises ConfigError for what is not good."""
    if not good:
        raise ConfigError(key, value, expected)


def one_of(key: str, value: object, options: Collection[str]) -> None:
    """Raises ConfigError for anything but one of the options."""
    require(key, value, value in options, f"one of {', '.join(options)}")


class RunError(Exception):
    """A run that cannot go on, in one line; what it had finished is on disk."""


class NotApplicable(Exception):  # noqa: N818 - a verdict that the report shows, not a fault
    """An attack cannot serve this observation, and why. A result, not a crash."""


class NotFiniteError(RuntimeError):
    """No start of a candidate led to a finite objective."""


def nearest(word: str, options: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the option closest to `word`, or nothing where none is close."""
    close = difflib.get_close_matches(word, list(options), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""
