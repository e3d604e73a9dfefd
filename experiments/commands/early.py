"""What else can be said of settings without any library: whether folders and files are there."""

from pathlib import Path

from experiments.cli.places import check_measured, check_sources, find_observations, refuse_used
from experiments.run.resumed import check_resume
from fedsim.settings.commands import AuditConfig, JobConfig, MeasureConfig, RunConfig


def check_early(config: JobConfig | MeasureConfig, root: Path) -> None:
    """Raises ConfigError where a command could not begin, or not go on."""
    if isinstance(config, MeasureConfig):
        check_measured(config)
        return
    if isinstance(config, RunConfig):
        check_resume(config, root)
        if config.resume is None:
            refuse_used(root)
        elif (root / "summary.json").is_file():
            return  # it is finished, and needs neither data nor model again
    if isinstance(config, AuditConfig):
        config.check_audit()
        if config.observation is not None:
            next(find_observations(Path(config.observation)))
            return
    check_sources(config)


def check_named(config: JobConfig | MeasureConfig) -> None:
    """Names that PyTorch or timm alone know, before Flower, Ray and all others are imported too.

    Raises:
        ConfigError: the optimiser or the model is none.
    """
    if isinstance(config, JobConfig):
        config.client.check_optimizer()
    if isinstance(name := config.model.get("name"), str):
        from fedsim.models import ModelSpec

        ModelSpec(name, num_classes=1).check()
