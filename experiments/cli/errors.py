"""Hydra's and OmegaConf's complaints as one line that names the key, the value and what would be right."""

import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import (
    HydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError

from experiments.commands.catalogue import Catalogue
from fedsim.errors import ConfigError, nearest

ASSIGNED = re.compile(r"[~+]*[\w./@-]+=")
"""How an override begins that sets something."""

ConfigFault = (ConfigError, HydraException, OmegaConfBaseException)


def one_line(error: BaseException, config_name: str, overrides: Iterable[str]) -> str:
    """The line to print for an error that a user's settings caused."""
    said = _said(error, config_name, list(overrides))
    return "".join(character if character.isprintable() else "?" for character in _flat(said))


def _said(error: BaseException, config_name: str, overrides: list[str]) -> str:
    known = config_error(error)
    if known is not None:
        return str(known)
    if isinstance(error, MarkedYAMLError) and (mark := error.problem_mark or error.context_mark):
        return f"{mark.name}, line {mark.line + 1}: {error.problem or error.context}: must be YAML"
    if isinstance(error, MissingConfigException):
        return _missing_option(str(error), config_name, overrides)
    if isinstance(error, InstantiationException):
        lines = [line for line in str(error).splitlines() if line.strip()]
        key = next((line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")), "")
        cause = error.__cause__ or error
        return f"{key or 'config'}: {' '.join(lines[:1])} {type(cause).__name__}: {_flat(str(cause))}"
    if isinstance(error, OverrideParseException) and (split := _split_list(error.override, overrides)):
        return split
    if isinstance(error, OverrideParseException) and (quoted := _quote_settings(error.override)):
        return quoted
    if isinstance(error, OverrideParseException) and "=" not in error.override:
        return _bare_word(error.override, config_name, overrides)
    if unquoted := re.search(r"Ambiguous value for argument '([^']+)'", str(error)):
        key, _, value = unquoted.group(1).partition("=")
        return f"{key}={value}: write {key}=[{value}] for a list, or add -m for a sweep over them"
    match = re.search(r"Could not override '([^']+)'", str(error)) or re.search(r"Key '([^']+)'", str(error))
    if match:
        return _unknown_key(match.group(1), config_name, overrides)
    if not isinstance(error, HydraException | OmegaConfBaseException):
        return f"{_odd_option(overrides) or str(error)}: a group takes the name of an option, or a list of them"
    return str(error)


def config_error(error: BaseException | None) -> ConfigError | None:
    """The refusal that is behind an error, where there is one."""
    while error is not None:
        if isinstance(error, ConfigError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _settings(arguments: Iterable[str]) -> list[str]:
    """Of the command's arguments those that set something: neither a flag nor its value."""
    return [argument for argument in arguments if not argument.startswith("-") and re.match(r"[~+]|[^=]+=", argument)]


def _odd_option(overrides: Iterable[str]) -> str | None:
    """The override that gives a whole group something else than names."""
    for override in OverridesParser.create().parse_overrides(_settings(overrides)):
        value = override.value()
        names = value if isinstance(value, list) else [value]
        group = (files("conf") / override.key_or_group).is_dir()
        if group and not all(isinstance(name, str) for name in names):
            return str(override.input_line)
    return None


def _split_list(odd: str, arguments: list[str]) -> str | None:
    """What to say where the shell has split a list at its blanks: `odd`, which Hydra cannot read, is a part of it."""
    for first, argument in enumerate(arguments):
        if not ASSIGNED.match(argument) or _left_open(argument) <= 0:
            continue
        for last in range(first + 1, len(arguments)):
            part = arguments[last]
            if ASSIGNED.match(part) and _left_open(part) == 0 and not part.endswith(","):
                break  # another override: nobody closes the list
            whole = " ".join(arguments[first : last + 1])
            if _left_open(whole) == 0 and odd in arguments[first : last + 1]:
                return f"{argument}: the list is split at its blanks; leave them out, or quote it: '{whole}'"
    return None


def _quote_settings(override: str) -> str | None:
    """What to say of a list with a setting in it that is not quoted, as a row of the matrix has them."""
    key, _, value = override.partition("=")
    quoted = re.sub(r"(?<=[\[,])[\w.+~@/-]+=[^\[\]{}()'\",\s]+(?=[,\]])", r'"\g<0>"', value)
    return f"{override}: quote each setting in the list: '{key}={quoted}'" if quoted != value else None


def _bare_word(word: str, config_name: str, arguments: list[str]) -> str:
    """What to say of a word that sets nothing: where it is a group's or an option's name, how it is written."""
    catalogue = Catalogue(config_name, own_folder(arguments))
    hint = next((f" Did you mean {option.chosen}?" for option in catalogue.find(word)), "")
    if word in catalogue.groups:
        hint = f" {word}=OPTION chooses one: {', '.join(option.name for option in catalogue.groups[word][:5])} …"
    return f"{word}: settings are written KEY=VALUE.{hint or ' --help names what can be set.'}"


def _left_open(text: str) -> int:
    """How many brackets are opened and not closed."""
    return sum(text.count(bracket) for bracket in "[{(") - sum(text.count(bracket) for bracket in "]})")


def _flat(text: str) -> str:
    return " ".join(text.split())


def own_folder(arguments: list[str]) -> list[str]:
    """What the call adds to Hydra's search path, as an override: --config-dir's folder."""
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in ("--config-dir", "-cd"):
            folder = value if equals else "".join(arguments[place + 1 : place + 2])
            found = Path(folder).resolve()
            plain = found.is_dir() and not set(str(found)) & set("'\\$")
            return [f"hydra.searchpath=['file://{found}']"] if folder and plain else []
    return []


def _missing_option(text: str, config_name: str, overrides: list[str]) -> str:
    found = re.search(r"Could not (?:find|load) '([^']+)'", text)
    if not found or "/" not in found.group(1):
        return _flat(text)
    group, name = found.group(1).rsplit("/", 1)
    own = own_folder(overrides)
    options = _options(group, config_name, own)
    given = any(argument.partition("=")[0] in ("--config-dir", "-cd") for argument in overrides)
    if hint := nearest(name, options):
        return f"{group}={name}: there is no such option.{hint} --help {group} lists all."
    more = "" if given else " Options of your own: --config-dir DIR."
    return f"{group}={name}: there is no such option; one of {', '.join(options)}.{more}"


def _options(group: str, config_name: str, own: list[str]) -> list[str]:
    GlobalHydra.instance().clear()
    with initialize_config_module("conf", version_base=None):
        return list(
            GlobalHydra.instance().config_loader().get_group_options(group, config_name=config_name, overrides=own)
        )


def _unknown_key(key: str, config_name: str, overrides: Iterable[str]) -> str:
    typed = next((o for o in overrides if o.lstrip("+~").split("=", 1)[0].split("@")[0] == key), None)
    value = typed.split("=", 1)[1] if typed and "=" in typed else ""
    groups = [o for o in _settings(overrides) if "." not in o.split("=", 1)[0]]
    keys = _all_keys(config_name, [*own_folder(list(overrides)), *groups])
    if some := _only_where_chosen(key, config_name, list(overrides)):
        return f"{key}={value}: there is no such key in some of the runs. {some}"
    hint = _where_chosen(key, config_name, own_folder(list(overrides))) or nearest(key, keys)
    if not hint:
        last = [k for k in keys if k.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]
        hint = f" Did you mean '{last[0]}'?" if last else ""
    return f"{key}={value}: there is no such key.{hint or ' --cfg job shows them all.'}"


def _where_chosen(key: str, config_name: str, own: list[str]) -> str:
    """` It is there with …`, where options of the key's group have it that are not chosen."""
    group, _, rest = key.partition(".")
    if not rest or not (files("conf") / group).is_dir():
        return ""
    options, (name, *inner) = _options(group, config_name, own), rest.split(".")
    choices = [f"{group}=[{name}]"] if inner else [f"{group}={one}" for one in options]
    choices = [one for one in choices if not inner or name in options]
    there = [one for one in choices if key in _all_keys(config_name, [*own, one])]
    return f" It is there with {' or '.join(there)}." if there else ""


def _only_where_chosen(key: str, config_name: str, overrides: list[str]) -> str:
    """`It is there only with …`, where a sweep over a group's options has the key in some of its runs alone."""
    groups = [o for o in _settings(overrides) if "." not in o.split("=", 1)[0]]
    parsed = OverridesParser.create().parse_overrides(groups)
    plain = [str(one.input_line) for one in parsed if not one.is_sweep_override()]
    for swept in (one for one in parsed if one.is_choice_sweep()):
        choices = [f"{swept.get_key_element()}={value}" for value in swept.sweep_string_iterator()]
        others = [*own_folder(overrides), *plain]
        there = [one for one in choices if key in _all_keys(config_name, [*others, one])]
        missing = [one for one in choices if one not in there]
        if there and missing:
            return f"It is there only with {' or '.join(there)}: run {' and '.join(missing)} without it."
    return ""


def _all_keys(config_name: str, overrides: list[str]) -> list[str]:
    """Every key of the composition; of the plain one where the overrides themselves cannot be composed."""
    GlobalHydra.instance().clear()
    with initialize_config_module("conf", version_base=None):
        try:
            config = compose(config_name, overrides)
        except (HydraException, OmegaConfBaseException):
            config = compose(config_name)
    return [key for key in _walk(config, "") if not key.startswith("hydra.")]


def _walk(config: DictConfig, prefix: str) -> Iterable[str]:
    for name in config:
        key = f"{prefix}{name!s}"
        yield key
        value = None if OmegaConf.is_missing(config, str(name)) else config._get_node(str(name))
        if isinstance(value, DictConfig):
            yield from _walk(value, f"{key}.")
