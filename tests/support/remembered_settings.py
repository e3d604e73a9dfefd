"""Hydra reads each file of `conf` once a process, merges the same choice of files once, and the same words once.

Composing takes an eighth of a second, nearly all of it reading and merging the same files anew, and the tests do it
thousands of times. What Hydra had read, merged or composed before comes back as a copy; whatever else a command line
says is read and set by Hydra in each call as ever. Options of a test's own folder are never remembered.
"""

import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

REPOSITORY = "hydra._internal.config_repository"
LOADER = "hydra._internal.config_loader_impl"
DEFAULTS = "hydra._internal.defaults_list"
SHIPPED = ("pkg", "structured")
"""Sources whose files no test changes."""
OWN_FOLDER = "searchpath"
copies: dict[tuple[Any, ...], bytes] = {}
done: set[str] = set()


def remember() -> None:
    """Where Hydra has been imported, let it remember; called before each test, it is not imported for this."""
    if LOADER not in sys.modules or LOADER in done:
        return
    done.add(LOADER)
    repository, loader = sys.modules[REPOSITORY].ConfigRepository, sys.modules[LOADER].ConfigLoaderImpl
    _wrap(repository, "load_config", lambda self, config_path: (self.sources, config_path))
    _wrap(
        loader,
        "_compose_config_from_defaults_list",
        lambda self, defaults, repo: (repo.get_sources(), repr(defaults)),
    )
    _wrap(loader, "load_configuration", _words, _here)
    _remember_interpolation(sys.modules[DEFAULTS])


def _words(
    self: Any,
    config_name: str | None,
    overrides: list[str],
    run_mode: Any,
    from_shell: bool = True,
    validate_sweep_overrides: bool = True,
) -> tuple[list[Any], Any]:
    """A whole call. Words that name further folders are read by Hydra's own code each time."""
    from hydra.core.singleton import Singleton
    from hydra.core.utils import JobRuntime

    sources = self.repository.get_sources()
    if any(OWN_FOLDER in word for word in overrides):
        return [], None
    job = JobRuntime().conf if JobRuntime in Singleton._instances else None
    return sources, (config_name, tuple(overrides), run_mode, from_shell, validate_sweep_overrides, repr(job))


def _here(config: Any) -> Any:
    """What a composition says of the process: the folder that it is in."""
    config.hydra.runtime.cwd = os.getcwd()  # noqa: PTH109 - as Hydra sets it
    return config


def _wrap(
    kind: type,
    name: str,
    asked: Callable[..., tuple[list[Any], Any]],
    adapt: Callable[[Any], Any] = lambda copy: copy,
) -> None:
    """Args: asked: of a call, the sources that it reads, and all else that its result depends on."""
    real = getattr(kind, name)

    def remembered(self: Any, **arguments: Any) -> Any:
        sources, rest = asked(self, **arguments)
        if not sources or any(source.scheme() not in SHIPPED for source in sources):
            return real(self, **arguments)
        key = name, rest, *((source.scheme(), source.path) for source in sources)
        if key not in copies:
            result = real(self, **arguments)
            copies[key] = pickle.dumps(result)
            return result
        return adapt(pickle.loads(copies[key]))

    setattr(kind, name, remembered)


def _remember_interpolation(module: Any) -> None:
    """The map of choices so far, which is made for each entry of a list of defaults and only read."""
    real, known = module._create_interpolation_map, {}

    def remembered(overrides: Any, defaults_list: Any, self_added: bool) -> Any:
        key = repr((overrides.known_choices, defaults_list, self_added))
        if key not in known:
            known[key] = real(overrides, defaults_list, self_added)
        return known[key]

    module._create_interpolation_map = remembered
