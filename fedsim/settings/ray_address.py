"""What is settled about Ray before it is imported: the environment that it starts in, and how an address is written."""

import os
import re

from fedsim.errors import ConfigError
from fedsim.memory.kept import KEPT_MEMORY

ADDRESS = re.compile(r"(?:ray://)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s/:\[\]]+):(?P<port>\d{1,5})")
EXPECTED = "null, auto, HOST:PORT or ray://HOST:PORT"


def quiet_environment() -> None:
    """Telemetry off before Flower or Ray are first used; a user's own setting wins."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Workers inherit these: a thread pool per worker would oversubscribe the cores.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name, value in KEPT_MEMORY.items():
        os.environ.setdefault(name, value)


def check_address(address: object) -> None:
    """Raises ConfigError where this can be no address of a cluster; None stands for this machine."""
    if address is None or address == "auto":
        return
    found = ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if found is None or not 0 < int(found["port"]) < 65536:
        raise ConfigError("ray.address", address, EXPECTED)
