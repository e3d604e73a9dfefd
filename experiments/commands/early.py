"""What can be said of settings without any library: names, types, ranges, and whether folders are there."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.cli.places import check_measured, check_sources, find_observations, refuse_used
from experiments.run.resumed import check_resume
from fedsim.settings.commands import AuditConfig, JobConfig, MatrixConfig, MeasureConfig, PriorConfig, RunConfig
from fedsim.settings.schema import parse

Given = Mapping[str, Any]


def read_run(given: Given, root: Path) -> RunConfig:
    """Raises ConfigError where a federated run could not begin, or not go on."""
    config = parse(RunConfig, given)
    check_resume(config, root)
    if config.resume is None:
        refuse_used(root)
    elif (root / "summary.json").is_file():
        return config  # it is finished, and needs neither data nor model again
    check_sources(config)
    return config


def read_audit(given: Given, root: Path) -> AuditConfig:
    """Raises ConfigError where an audit could not begin."""
    config = parse(AuditConfig, given)
    config.check_attacks()
    if config.observation is None:
        check_sources(config)
    else:
        next(find_observations(Path(config.observation)))
    return config


def read_measure(given: Given, root: Path) -> MeasureConfig:
    """Raises ConfigError where nothing could be measured."""
    config = parse(MeasureConfig, given)
    check_measured(config)
    return config


def read_matrix(given: Given, root: Path) -> MatrixConfig:
    """Raises ConfigError where no row could begin."""
    config = parse(MatrixConfig, given)
    check_sources(config)
    return config


def read_prior(given: Given, root: Path) -> PriorConfig:
    """Raises ConfigError where a training could not begin."""
    config = parse(PriorConfig, given)
    check_sources(config)
    return config


def check_named(config: JobConfig | MeasureConfig) -> None:
    """Names that PyTorch or timm alone know, before Flower, Ray and all others are imported too.

    Raises:
        ConfigError: the optimiser or the model is none.
    """
    if isinstance(config, JobConfig) and config.client.share != "gradient":
        _ = config.client.optimisers
    if isinstance(name := config.model.get("name"), str):
        from fedsim.models import ModelSpec

        ModelSpec(name, num_classes=1).check()
