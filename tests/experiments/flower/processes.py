"""Flower's processes for one test: on the loopback, without telemetry or network, all gone at the end."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

PROGRAMS = ("flower-superlink", "flower-supernode", "flower-superexec", "flwr", "flwr-clientapp", "flwr-serverapp")
SECONDS_TO_START = 120.0
SECONDS_TO_RUN = 480.0
SECONDS_TO_STOP = 60.0


class FlowerProcesses:
    """A SuperLink, SuperNodes and `flwr` commands, with a Flower home of their own.

    Args:
        scripts: a folder in which their programs are looked for first.

    Whatever they start has the home's path in its environment: that is how it is found again, in whichever session
    or process group it is.
    """

    def __init__(self, home: Path, scripts: Path) -> None:
        self._home = home
        self._started: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **os.environ,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": os.pathsep.join([str(scripts), str(Path(sys.executable).parent), os.environ["PATH"]]),
        }

    def start_superlink(self, *arguments: str) -> str:
        """Gives its address, once it answers; `flwr` commands go to it from then on.

        Raises:
            RuntimeError: it does not, with its log.
        """
        port = free_port()
        address = f"127.0.0.1:{port}"
        connection = f'[superlink]\ndefault = "test"\n[superlink.test]\naddress = "{address}"\ninsecure = true\n'
        (self._home / "config.toml").write_text(connection)
        no_installing = "--disable-runtime-dependency-installation"
        self._start(
            "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port), no_installing, *arguments
        )
        deadline = time.monotonic() + SECONDS_TO_START
        while not _answers(address):
            if time.monotonic() > deadline or self._started[-1].poll() is not None:
                raise RuntimeError(f"the SuperLink does not answer:\n{self.log()}")
            time.sleep(0.2)
        return address

    def start_supernode(self, superlink: str, node_config: str) -> None:
        here = ("--host", "127.0.0.1", "--port", str(free_port()))
        self._start("flower-supernode", "--insecure", "--superlink", superlink, *here, "--node-config", node_config)

    def flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One `flwr` command, to its end."""
        return subprocess.run(
            ["flwr", *arguments],
            env=self._environment,
            cwd=self._home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_TO_RUN,
            check=False,
        )

    def runs(self) -> dict[str, dict[str, str]]:
        """What `flwr list` says of each run, by its status."""
        listed = json.loads(self.flwr("list", "--format", "json").stdout)
        return {run["status"]: run for run in listed["runs"]}

    def log(self) -> str:
        """What all processes said."""
        return (self._home / "processes.log").read_text(errors="replace")

    def ask_to_stop(self) -> list[int]:
        """Ask those started here to end, and wait for them and all that they started; gives those still there."""
        for process in reversed(self._started):
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + SECONDS_TO_STOP
        while (left := self._alive()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return left

    def kill(self) -> None:
        while left := self._alive():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def _start(self, *command: str) -> None:
        with (self._home / "processes.log").open("ab") as log:
            self._started.append(
                subprocess.Popen(
                    command, env=self._environment, cwd=self._home, stdout=log, stderr=log, start_new_session=True
                )
            )

    def _alive(self) -> list[int]:
        for process in self._started:
            process.poll()
        home = f"FLWR_HOME={self._home}".encode()
        return [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/environ")
            if home in _content(path).split(b"\0")
        ]


@contextmanager
def flower_processes(home: Path, scripts: Path) -> Iterator[FlowerProcesses]:
    """Kills what is left at the end of the block, whatever happens in it."""
    home.mkdir()
    processes = FlowerProcesses(home, scripts)
    try:
        yield processes
    finally:
        processes.kill()


def free_port() -> int:
    """A port on the loopback below those that the system gives to outgoing connections."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/health", timeout=5.0, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def _content(path: Path) -> bytes:
    """Nothing for a process that has ended, or is another user's."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
