"""A head that `ray start` has made, as a user joins it: by its address and through its client server."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

CPUS = """
import sys
from fedsim.simulation.ray_cluster import ray_cluster
with ray_cluster(sys.argv[1], 1, 0):
    import ray
    print("CPUs:", ray.cluster_resources()["CPU"])
"""


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """By a user for whom an earlier Ray has made a token: environment, address, address of the client server."""
    home = tmp_path_factory.mktemp("home")
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("0" * 64)
    ports = [free_port() for _ in range(2)]
    environment = {**os.environ, "HOME": str(home), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        environment.pop(name, None)
    options = ["--head", "--block", "--node-ip-address=127.0.0.1", "--include-dashboard=false", "--num-cpus=1"]
    options += [
        f"--port={ports[0]}",
        f"--ray-client-server-port={ports[1]}",
        "--min-worker-port=0",
        "--max-worker-port=0",
    ]
    ray_command = [str(Path(sys.executable).with_name("ray")), "start", *options]
    with subprocess.Popen(
        ray_command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            for line in process.stdout:
                if "Ray runtime started" in line:
                    break
            yield environment, f"127.0.0.1:{ports[0]}", f"ray://127.0.0.1:{ports[1]}"
        finally:
            process.terminate()


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.mark.parametrize("way", [1, 2], ids=["address", "client server"])
def test_who_has_the_token_joins(head, way):
    environment, address = head[0], head[way]
    call = [sys.executable, "-c", CPUS, address]
    found = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=200)
    assert found.stdout == "CPUs: 1.0\n", found.stderr
    assert "oken" not in found.stderr
