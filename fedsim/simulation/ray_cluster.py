"""Starting Ray, or joining a cluster: quiet, on the loopback, sized for what was asked."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedsim.errors import ConfigError


def quiet_environment() -> None:
    """Telemetry off before Flower or Ray are first used; a user's own setting wins."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Workers inherit these: a thread pool per worker would oversubscribe the cores.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@contextmanager
def ray_cluster(
    address: str | None, num_cpus: int, num_gpus: int, dashboard: bool = False, working_dir: Path | None = None
) -> Iterator[None]:
    """Ray for the block: a local one of this size, or the cluster at `address`.

    A Ray that is already running in this process is used as it is and left running.

    Raises:
        ConfigError: no cluster answers at `address`.
    """
    quiet_environment()
    import ray

    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "configure_logging": False,
        "include_dashboard": dashboard,
    }
    if address is None:
        options |= {"num_cpus": num_cpus, "num_gpus": num_gpus, "dashboard_host": "127.0.0.1"}
        options["_node_ip_address"] = "127.0.0.1"
    else:
        options["address"] = address
        del options["include_dashboard"]
        if working_dir is not None:
            options["runtime_env"] = {"working_dir": str(working_dir)}
    try:
        ray.init(**options)
    except (ConnectionError, ValueError) as error:
        raise ConfigError("ray.address", address, f"no Ray cluster answers there ({error})") from error
    try:
        yield
    finally:
        ray.shutdown()
