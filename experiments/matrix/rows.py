"""Rows and columns of a leakage matrix: from their short notation to the settings of each training and audit."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

from experiments.cli.call import resolved
from experiments.cli.errors import ConfigFault, one_line
from fedsim.errors import ConfigError, nearest
from fedsim.report.matrix.cells import MatrixColumn
from fedsim.settings.commands import MatrixSettings
from fedsim.settings.composition import Config
from fedsim.settings.knowledge import read_knowledge, without_knowledge

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")

SHARED = ("seed", "client", "ray", "data", "model", "finetune", "defense", "tracker", "simulation")
TRAINING = ("num_clients", "num_rounds", "partition", "strategy", "evaluate_every", "checkpoint_every", "round_timeout")

RESUME_EVERY = 30.0
"""Seconds between resume points of a training, as of a federated run."""

OF_THE_MATRIX = ("seed", "attack", "matrix", "run_dir")
"""First parts of keys that every row has from the whole matrix; `simulation` too, where rows run side by side."""


@dataclass(frozen=True)
class Asked:
    """A row or a column as it was asked for.

    Attributes:
        options: of conf/defense or conf/attack, in order.
        overrides: what Hydra composes its settings from, after the command line's own.
    """

    name: str
    options: tuple[str, ...]
    overrides: tuple[str, ...]
    settings: str = ""


def read_rows(matrix: MatrixSettings) -> list[Asked]:
    """The chosen rows: those that `matrix.defenses` names, then options of conf/defense as they come.

    Without a choice, those options that no row has by itself.

    Raises:
        ConfigError: a row that cannot be read, or one chosen that there is not.
    """
    rows = []
    for name, words in _named("matrix.defenses", matrix.defenses):
        common = (*OF_THE_MATRIX, *(("simulation",) if matrix.parallel else ()))
        if odd := next((word for word in words if "=" in word and _first(word) in common), None):
            fault = f"{_first(odd)} is set for the whole matrix, and no row has its own"
            raise ConfigError(f"matrix.defenses.{name}", odd, fault=fault)
        rows.append(_entry("defense", name, words))
    taken = {row.name for row in rows}
    plain = [_entry("defense", option, [option]) for option in _options("defense") if option not in taken]
    if matrix.rows is not None:
        return _chosen("matrix.rows", matrix.rows, [*rows, *plain])
    named = {row.options for row in rows}
    return [*rows, *(row for row in plain if matrix.every_defense and row.options not in named)]


def read_columns(matrix: MatrixSettings) -> list[Asked]:
    """The chosen columns.

    Raises:
        ConfigError: a column that cannot be read or is not one attack, or one chosen that there is not.
    """
    columns = []
    for name, words in _named("matrix.attacks", matrix.attacks):
        column = _entry("attack", name, words)
        if len(column.options) != 1:
            raise ConfigError(f"matrix.attacks.{name}", column.settings, "one option of conf/attack")
        (option,) = column.options
        if odd := next((word for word in words if _first(word) not in (option, "attack")), None):
            wanted = f"{option}.KEY=VALUE, a setting of the attack: others are a row's, or the whole matrix's"
            raise ConfigError(f"matrix.attacks.{name}", odd, wanted)
        columns.append(column)
    return columns if matrix.columns is None else _chosen("matrix.columns", matrix.columns, columns)


class Composer:
    """Composes the settings of rows and columns as the command line composed those of the whole matrix."""

    def __init__(self) -> None:
        hydra = HydraConfig.get()
        self._name = str(hydra.job.config_name)
        self._typed = [str(override) for override in hydra.overrides.task]

    def row(self, row: Asked, seed: int) -> Config:
        """Resolved settings of a row.

        Raises:
            ConfigError: it names an option or a key that there is not.
        """
        return self._compose(f"matrix.defenses.{row.name}", row, [*row.overrides, f"seed={seed}"])

    def attack(self, column: Asked) -> Config:
        """The settings of the column's attack.

        Raises:
            ConfigError: it names an option or a key that there is not.
        """
        attacks = self._compose(f"matrix.attacks.{column.name}", column, column.overrides)["attack"]
        if len(attacks) != 1:
            raise ConfigError(f"matrix.attacks.{column.name}", column.settings, "one attack")
        settings: Config = next(iter(attacks.values()))
        return settings

    def _compose(self, key: str, entry: Asked, overrides: Iterable[str]) -> Config:
        overrides = list(overrides)
        try:
            return resolved(compose(self._name, overrides=[*self._typed, *overrides]))
        except ConfigFault as error:
            raise ConfigError(key, entry.settings, fault=one_line(error, self._name, overrides)) from error


def described(column: Asked, attack: Config, blind: bool = False) -> MatrixColumn:
    """The column for a reader: every setting of its attack, defaults included."""
    settings = ", ".join(f"{key}={value}" for key, value in _flat(without_knowledge(attack)))
    return MatrixColumn(column.name, column.settings, settings, blind, read_knowledge(f"attack.{column.name}", attack))


def training_config(row: Config) -> Config:
    """The settings of a federated run that nobody attacks."""
    quiet = {"every": 0, "clients": 0, "save": False}
    about = {"audit": False, "attack": {}, "observe": quiet, "resume_every_seconds": RESUME_EVERY}
    return {**{key: row[key] for key in (*SHARED, *TRAINING)}, **about}


def audit_config(row: Config, attacks: Mapping[str, Config], checkpoint: str | None = None) -> Config:
    """The settings of an audit.

    Args:
        checkpoint: of a training, for the trained state.
    """
    config = {key: row[key] for key in (*SHARED, "audit")}
    config["client"] = {**row["client"], "batch_size": row["audit"]["batch_size"]}
    if checkpoint is not None:
        config["model"] = {**row["model"], "checkpoint": checkpoint, "checkpoint_head": True}
    return {**config, "attack": dict(attacks), "observation": None}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, object]]:
    """Dotted keys and values; a part is its class, and then its own settings."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            if "_target_" in value:
                yield f"{prefix}{key}", str(value["_target_"]).rpartition(".")[2]
            yield from _flat(value, f"{prefix}{key}.")
        elif key != "_target_":
            yield f"{prefix}{key}", value


def _entry(group: str, name: str, words: list[str]) -> Asked:
    options = tuple(word for word in words if "=" not in word)
    overrides = [f"{group}=[{','.join(options)}]"]
    for word in words:
        if "=" in word:
            sign = word[: len(word) - len(word.lstrip("+~"))]
            key = word.removeprefix(sign)
            overrides.append(f"{sign}{group}.{key}" if key.split(".", 1)[0] in options else word)
    return Asked(name, options, tuple(overrides), ", ".join(words))


def _first(word: str) -> str:
    """The first part of the key that it sets, or the option that it is."""
    return word.lstrip("+~").partition("=")[0].split(".", 1)[0]


def _named(key: str, entries: object) -> Iterable[tuple[str, list[str]]]:
    if not isinstance(entries, Mapping) or not entries:
        raise ConfigError(key, entries, "names with a list each, for example {none: [], clipped: [gradient_clip]}")
    for name, words in entries.items():
        if not NAME.fullmatch(str(name)):
            raise ConfigError(key, name, "letters, digits and . _ + - in a name: it becomes a folder's")
        listed = [words] if isinstance(words, str) else words
        if not isinstance(listed, list) or not all(isinstance(word, str) for word in listed):
            raise ConfigError(f"{key}.{name}", words, "a list of options and KEY=VALUE")
        yield str(name), listed


def _chosen(key: str, names: Any, entries: list[Asked]) -> list[Asked]:
    known = {entry.name: entry for entry in entries}
    if not isinstance(names, list) or not names:
        raise ConfigError(key, names, f"a list of some of {', '.join(known)}, or null for all")
    for name in names:
        if str(name) not in known:
            raise ConfigError(key, name, f"one of {', '.join(known)}.{nearest(str(name), known)}")
    return [known[str(name)] for name in dict.fromkeys(names)]


def _options(group: str) -> list[str]:
    """All options of a group on Hydra's search path: those of plug-ins too."""
    return list(GlobalHydra.instance().config_loader().get_group_options(group))
