"""A head that `ray start` has made, as a user joins it by its address."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.subprocess]

CPUS = """
import sys
from fedsim.simulation.ray_cluster import ray_cluster
with ray_cluster(sys.argv[1], 1, 0):
    import ray
    print("CPUs:", ray.cluster_resources()["CPU"])
"""


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """By a user for whom an earlier Ray has made a token: environment and address."""
    home = tmp_path_factory.mktemp("home")
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("0" * 64)
    port = free_port()
    environment = {**os.environ, "HOME": str(home), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    environment["RAY_prestart_worker_first_driver"] = "0"  # no task is run
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        environment.pop(name, None)
    options = ["--head", "--block", "--node-ip-address=127.0.0.1", "--include-dashboard=false", "--num-cpus=1"]
    options += [f"--port={port}", "--min-worker-port=0", "--max-worker-port=0", f"--temp-dir={tempfile.mkdtemp()}"]
    options += ["--include-log-monitor=false"]
    ray_command = [str(Path(sys.executable).with_name("ray")), "start", *options]
    with subprocess.Popen(
        ray_command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            said = []
            for line in process.stdout:
                said.append(line)
                if "Ray runtime started" in line:
                    break
            else:
                pytest.fail("".join(said))
            yield environment, f"127.0.0.1:{port}"
        finally:
            process.terminate()


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_who_has_the_token_joins(head):
    environment, address = head
    call = [sys.executable, "-c", CPUS, address]
    environment = {**environment, "RAY_NUM_REDIS_GET_RETRIES": "5"}  # seconds, before Ray says that no token was sent
    found = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=200)
    assert found.stdout == "CPUs: 1.0\n", found.stderr
    assert "oken" not in found.stderr
