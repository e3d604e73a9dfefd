"""What can be said of settings without any library: names, types, ranges, and whether folders are there."""

from pathlib import Path
from typing import Any

from experiments.cli.completeness import check_complete
from experiments.cli.places import check_measured, check_sources, find_observations, refuse_used
from experiments.cli.values import (
    check_audit_values,
    check_common_values,
    check_federated_values,
    check_matrix_values,
    one_of,
)
from experiments.run.resumed import check_resume
from fedsim.errors import ConfigError

Config = dict[str, Any]

PRIORS = ("generator", "lti")
"""What `fedsim-prior` can train."""


def check_federated(config: Config, root: Path) -> None:
    """Raises ConfigError where a federated run could not begin, or not go on."""
    check_federated_values(config)
    check_resume(config, root)
    if config.get("resume") is None:
        refuse_used(root)
    elif (root / "summary.json").is_file():
        return  # it is finished, and needs neither data nor model again
    check_sources(config)


def check_audit(config: Config, root: Path) -> None:
    """Raises ConfigError where an audit could not begin."""
    observation = config.get("observation")
    if observation is None:
        check_audit_values(config)
        check_sources(config)
        return
    check_complete(config, "audit")
    check_common_values(config)
    if not isinstance(observation, str):
        raise ConfigError("observation", observation, "a folder of observations, or null")
    next(find_observations(Path(observation)))


def check_measure(config: Config, root: Path) -> None:
    """Raises ConfigError where nothing could be measured."""
    check_complete(config, "measure")
    check_measured(config)


def check_matrix(config: Config, root: Path) -> None:
    """Raises ConfigError where no row could begin."""
    check_matrix_values(config)
    check_sources(config)


def check_prior(config: Config, root: Path) -> None:
    """Raises ConfigError where a training could not begin."""
    check_complete(config, "prior")
    one_of("kind", config["kind"], PRIORS)
    check_sources(config)


def check_named(config: Config) -> None:
    """Names that PyTorch or timm alone know, before Flower, Ray and all others are imported too.

    Raises:
        ConfigError: the optimiser or the model is none.
    """
    client, name = config.get("client", {}), config["model"].get("name")
    if client.get("share", "gradient") != "gradient":
        from fedsim.settings.optimizers import optimizer_factory

        optimizer_factory("client", client["optimizer"], client["scheduler"])
    if isinstance(name, str):
        from fedsim.models import ModelSpec

        ModelSpec(name, num_classes=1).check()
