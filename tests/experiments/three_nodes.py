"""A Ray cluster of three nodes and a head on this machine, in a process of its own; `python -m` is that process.

Its word is a Python, see `warm_python`, that its nodes start workers with. It writes a line {"address": …}, removes
each node whose id it reads, answering with a line, and ends with its input.

Each node unpacks the code that a driver sends in a folder of its own, as on a machine of its own: Ray clears that
folder before it unpacks, while a worker of another node may be importing from it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.forking import write_script
from tests.support.preloaded_workers import WORKER

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}


class ThreeNodes:
    """One CPU each; the head, where drivers are, has none: every client is on a node that can be lost."""

    def __init__(self, python: Path) -> None:
        self._python = python

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.experiments.three_nodes", str(self._python)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, cwd=ROOT, env=ENVIRONMENT
        )
        assert self._process.stdout is not None
        self.address = json.loads(self._process.stdout.readline())["address"]
        return self

    def remove(self, node: str) -> None:
        """As if it lost its power."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{node}\n")
        self._process.stdin.flush()
        assert json.loads(self._process.stdout.readline()) == {"removed": node}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=120)
        self._process.stdout.close()


def start_workers_with(python: str) -> None:
    """Raylets take it for their workers, and their own Python for all else that they start."""
    from ray._private import services

    start, real = services.start_raylet, sys.executable
    own = Path(python).with_name("python-of-workers")
    write_script(own, f'case "$*" in *{WORKER}*) exec {python} "$@" ;; esac\nexec {real} "$@"')

    def start_raylet(*arguments: Any, **settings: Any) -> Any:
        sys.executable = str(own)
        try:
            return start(*arguments, **settings)
        finally:
            sys.executable = real

    services.start_raylet = start_raylet


def serve() -> None:
    from fedsim.simulation.ray_cluster import _bind_to_loopback

    _bind_to_loopback()
    from ray.cluster_utils import Cluster

    start_workers_with(sys.argv[1])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    added = [cluster.add_node(num_cpus=1, wait=False, runtime_env_dir_name=f"node-{one}") for one in range(3)]
    nodes = {node.node_id: node for node in added}
    cluster.wait_for_nodes(120)
    print(json.dumps({"address": cluster.address}), flush=True)
    for line in sys.stdin:
        cluster.remove_node(nodes[line.strip()], allow_graceful=False)
        print(json.dumps({"removed": line.strip()}), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    serve()
