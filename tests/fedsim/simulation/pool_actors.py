"""What the pool's tests put into it; Ray workers import it from the checkout."""

import time
from pathlib import Path

from fedsim.errors import ConfigError
from fedsim.simulation.actor_pool import PooledWorker


class Homeless(PooledWorker):
    def __init__(self):
        raise ConfigError("data.path", "/pictures", fault="no such folder (on node 10.0.0.2 of the cluster)")


class Broken(PooledWorker):
    def __init__(self):
        raise ValueError("no data here")


class Adder(PooledWorker):
    def add(self, a, b):
        return a + b

    def nap(self, marker, seconds):
        Path(marker).touch()
        time.sleep(seconds)
        return seconds

    def fail(self):
        raise KeyError("a")
