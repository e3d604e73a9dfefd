"""Starting Ray, or joining a cluster: quiet, on the loopback, sized for what was asked."""

import logging
import os
import sys
import tempfile
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
    """Ray for the block: a local one of this size on the loopback, or the cluster at `address`.

    A Ray that is already running in this process is used as it is and left running.

    Raises:
        ConfigError: no cluster answers at `address`.
    """
    quiet_environment()
    import ray

    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    if address is None:
        _bind_to_loopback()
        options |= {"num_cpus": num_cpus, "num_gpus": num_gpus, "include_dashboard": dashboard}
        options["dashboard_host"] = "127.0.0.1"
    else:
        options["address"] = address
        if working_dir is not None:
            options["runtime_env"] = {"working_dir": str(working_dir)}
    try:
        with _quiet_stderr():
            ray.init(**options)
    except (ConnectionError, ValueError) as error:
        raise ConfigError("ray.address", address, f"no Ray cluster answers there ({error})") from error
    try:
        yield
    finally:
        ray.shutdown()


def _bind_to_loopback() -> None:
    """Ray's servers otherwise listen on every interface; the switch is the one of laptops without clusters."""
    from ray._private import ray_constants

    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Ray's native code greets on file descriptor 2; what it wrote is shown only where it failed."""
    sys.stderr.flush()
    original = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield
        except BaseException:
            captured.seek(0)
            os.write(original, captured.read())
            raise
        finally:
            os.dup2(original, 2)
            os.close(original)
