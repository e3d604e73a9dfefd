"""Defenses as a configuration builds them: without the argument checks that only the test run has."""

import inspect


def configured(cls, **settings):
    """An object of `cls`; a user's values may have any type."""
    made = cls.__new__(cls)
    inspect.unwrap(cls.__init__)(made, **settings)
    return made
