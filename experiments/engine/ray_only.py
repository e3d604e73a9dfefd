"""Settings that only Ray's workers can serve."""

from functools import cache
from typing import Any

from experiments.cli.completeness import shipped
from fedsim.settings.composition import Config

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


def needs_ray(config: Config) -> str | None:
    """The first of these settings, as `key=value`; None where this process will do."""
    if config["ray"]["address"] is not None:
        return f"ray.address={config['ray']['address']}"
    simulation, usual = config["simulation"], _usual()
    key = next((key for key in KEYS if simulation[key] != usual[key]), None)
    return None if key is None else f"simulation.{key}={simulation[key]}"


@cache
def _usual() -> dict[str, Any]:
    return shipped("simulation/ray.yaml")
