"""Flower's run-config and node-config, which hold flat scalars, as the configuration of a run.

Both have one key, `overrides`: Hydra overrides as on the command line, `"data=cifar10 num_rounds=20"`.
"""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from experiments.cli.call import resolved
from experiments.cli.errors import ConfigFault, one_line
from experiments.cli.repeats import refuse_repeats
from fedsim.errors import ConfigError, RunError
from fedsim.settings.commands import RunConfig
from fedsim.settings.schema import parse

OVERRIDES, PARTITION_ID, NUM_PARTITIONS = "overrides", "partition-id", "num-partitions"
INTRODUCTION, VERSION, REFUSAL = "fedsim.introduction", "version", "refusal"
NO_IMAGES = "audit=false"
SERVER_DEFAULTS = ("simulation=inline", "resume_every_seconds=null")

FlatConfig = Mapping[str, Any]


def server_config(run_config: FlatConfig) -> RunConfig:
    """The configuration of the ServerApp.

    Unless the overrides say otherwise, attacks run in its process, and it leaves no resume points: a run that
    `fedsim resume=` took up would go on with simulated clients.

    Raises:
        ConfigError: the overrides ask clients for what their models saw, which is not the server's to decide.
        ConfigFault: Hydra's complaint about an override.
    """
    given = _compose([*SERVER_DEFAULTS, NO_IMAGES, *split(run_config)])
    if given["audit"] is not False:
        expected = "false: a SuperNode sends what its model saw only where its own --node-config says audit=true"
        raise ConfigError("audit", str(given["audit"]).lower(), expected)
    return parse(RunConfig, given)


def client_config(run_config: FlatConfig, node_config: FlatConfig) -> RunConfig:
    """The configuration of one client: the run's overrides, then those of its SuperNode, which win.

    Where the SuperNode chooses another option of a group, the run's settings of its own option go with that.
    Whatever the run asks for, `audit` is false unless the SuperNode's own overrides set it.

    Raises:
        ConfigError: a quotation without end, or a setting that cannot work.
        ConfigFault: Hydra's complaint about an override.
    """
    run, node = split(run_config), split(node_config)
    return parse(RunConfig, _compose([*_still_meant(run, node), NO_IMAGES, *node]))


def partition_id(node_config: FlatConfig, num_clients: int) -> int:
    """A SuperNode's number among the clients.

    Raises:
        ConfigError: its node-config gives none, or one outside 0 … num_clients - 1, or counts other partitions.
    """
    counted = node_config.get(NUM_PARTITIONS, num_clients)
    if counted != num_clients:
        raise ConfigError("num_clients", num_clients, f"{counted}, the num-partitions of the SuperNodes")
    value = node_config.get(PARTITION_ID)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < num_clients:
        expected = f"a whole number from 0 to {num_clients - 1} in the SuperNode's --node-config"
        raise ConfigError(PARTITION_ID, value, expected)
    return value


def split(settings: FlatConfig) -> list[str]:
    """The overrides in a run-config or a node-config, split as a shell does.

    Raises:
        ConfigError: a quotation without end.
    """
    text = str(settings.get(OVERRIDES, ""))
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(OVERRIDES, text, f"Hydra overrides as in a shell ({error})") from error


@contextmanager
def faults_in_one_line(*settings: FlatConfig) -> Iterator[None]:
    """Faulty settings in the block end it with the line that the command would print; Flower's log shows it last.

    Raises:
        RunError: that line.
    """
    try:
        yield
    except ConfigFault as error:
        overrides = [] if isinstance(error, ConfigError) else [one for part in settings for one in split(part)]
        raise RunError(one_line(error, "config", overrides)) from None


def _still_meant(run: list[str], node: list[str]) -> list[str]:
    """The run's overrides without settings of options that the node replaces or takes away."""
    now = _choices(node)
    before = _options(run) if now else {}

    def gone(text: str) -> bool:
        group, _, rest = _parsed(text).key_or_group.partition(".")
        if not rest or group not in now or now[group] == before.get(group):
            return False
        return rest.split(".")[0] not in now[group]

    return [text for text in run if not gone(text)]


def _options(run: list[str]) -> dict[str, list[Any]]:
    """What the run has in each group, whether it names it or its defaults do."""
    config = _composed([text for text in run if "." not in _parsed(text).key_or_group], return_hydra_config=True)
    return {group: [option] for group, option in config.hydra.runtime.choices.items()} | _choices(run)


def _choices(overrides: list[str]) -> dict[str, list[Any]]:
    """Options by their group; none of a group that is taken away."""
    chosen: dict[str, list[Any]] = {}
    for override in map(_parsed, overrides):
        if "." not in override.key_or_group:
            value = [] if override.is_delete() else override.value()
            chosen[override.key_or_group] = value if isinstance(value, list) else [value]
    return chosen


def _parsed(text: str) -> Override:
    return OverridesParser.create().parse_override(text)


def _compose(overrides: list[str]) -> dict[str, Any]:
    return resolved(_composed(overrides))


def _composed(overrides: list[str], **more: Any) -> DictConfig:
    refuse_repeats(overrides)
    GlobalHydra.instance().clear()
    with initialize_config_module("conf", version_base=None):
        try:
            return compose("config", overrides, **more)
        except ValueError as error:  # Hydra's own for a group that is neither a name nor a list
            raise ConfigError(OVERRIDES, " ".join(overrides), f"what Hydra takes ({error})") from error
