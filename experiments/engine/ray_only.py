"""Settings that only Ray's workers can serve."""

from fedsim.settings.commands import JobConfig
from fedsim.settings.groups import usual_simulation

KEYS = (
    "workers",
    "num_gpus",
    "resources",
    "attack_workers",
    "attack_num_gpus",
    "attack_resources",
    "attack_crews",
    "attack_timeout",
)
"""Of `simulation`, where they are others than `conf` has: a number of workers, GPUs, a worker that can be killed."""


def needs_ray(config: JobConfig) -> str | None:
    """The first of these settings, as `key=value`; None where this process will do."""
    if config.ray.address is not None:
        return f"ray.address={config.ray.address}"
    given, usual = {key: getattr(config.simulation, key) for key in KEYS}, usual_simulation()
    key = next((key for key in KEYS if given[key] != usual[key]), None)
    return None if key is None else f"simulation.{key}={given[key]}"
