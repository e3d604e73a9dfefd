"""Faults of what a run shares with others: Ray's object store, the ports of Flower's processes."""

import re
import secrets
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.operations.processes import wait_until
from tests.operations.runs import SECONDS_FOR_A_RUN, Bench, differences
from tests.operations.table import Finding

STORE = 75 * 2**20
"""Bytes; Ray starts with no less."""

MAPPED = re.compile(r"create_and_mmap_buffer\((\d+), ([^)]+)\)")
"""Ray's word for memory that an object store takes."""

BIG = (
    "model.name=vit_small_patch16_224",  # 88 MB of parameters
    "model.img_size=32",
    "num_clients=2",
    "num_rounds=2",
    "observe.every=1",
    "observe.clients=1",
    "observe.save=false",
    "attack=[labels]",
    "tracker=[]",
    "resume_every_seconds=null",
)
DEPLOYED = (
    "num_clients=2",
    "num_rounds=2",
    "evaluate_every=1",
    "observe.every=1",
    "attack=[patch_gradient]",
    "tracker=[]",
    "simulation.worker_sums=0",
)
TAKEN = re.compile(r"\balready in use\b|\bbind\b", re.IGNORECASE)
FLOWER = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
APP = """[project]
name = "faults"
version = "1.0.0"

[tool.flwr.app]
publisher = "fedsim"

[tool.flwr.app.components]
serverapp = "experiments.flower.app:server_app"
clientapp = "experiments.flower.app:client_app"

[tool.flwr.app.config]
overrides = ""
"""


def store_too_small(bench: Bench, finding: Finding) -> None:
    alone = bench.finished(bench.start(*BIG, "simulation=inline"))
    small = {"RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": str(STORE)}
    others = set(ray_logs(bench.scratch))
    run = bench.start(*BIG, f"simulation.workers={bench.workers}", environment=small)
    code = run.wait()
    stores, beside = allocations(log.read_text(errors="replace") for log in set(ray_logs(bench.scratch)) - others)
    shown = f"{[size // 2**20 for size in stores]} MiB"
    finding.check(
        max(stores, default=2 * STORE) < 1.01 * STORE, f"stores of {shown}", f"stores of {shown} by Ray's log"
    )
    fell_back = [size for size in beside if size > STORE]
    said = f"{len(fell_back)} times a file on disk for what is larger, {max(fell_back, default=0) // 2**20} MiB at most"
    finding.check(bool(fell_back), said, "Ray's log tells of nothing that did not fit")
    if code != 0:
        finding.check(False, "", f"the run ended with {code}: {run.last_words}")
        return
    found = differences(run.folder, alone.folder)
    finding.check(not found, "completed with the same bits", "; ".join(found))
    left = bench.tree.left_after(30.0)
    finding.check(not left, "no process left", f"processes left: {[one.title for one in left]}")


def ray_logs(scratch: Path) -> Iterator[Path]:
    """Of the raylets, which hold the object stores, one a session; `session_latest` is a link to one of them."""
    return (path for path in scratch.glob("ray/session_*/logs/raylet.out") if not path.parents[1].is_symlink())


def allocations(logs: Iterable[str]) -> tuple[list[int], list[int]]:
    """Bytes that object stores took in shared memory, and in files elsewhere where an object did not fit."""
    found = [(int(size), path) for log in logs for size, path in MAPPED.findall(log)]
    shared = [size for size, path in found if path.startswith("/dev/shm/")]
    return shared, [size for size, path in found if not path.startswith("/dev/shm/")]


def superlink_port_taken(bench: Bench, finding: Finding) -> None:
    """A SuperLink at a port where somebody else listens."""
    flower = _Flower(bench)
    with taken_port() as port:
        finding.check(*told("SuperLink", port, *flower.ends(*flower.superlink(port))))
    left = bench.tree.left_after(30.0)
    finding.check(not left, "no process left", f"processes left: {[one.title for one in left]}")


def supernode_port_taken(bench: Bench, finding: Finding) -> None:
    """A SuperNode likewise; then the run that was meant, on free ports."""
    flower = _Flower(bench)
    port = free_port()
    link = flower.start(*flower.superlink(port))
    wait_until(lambda: link.poll() is not None or _listens(port), 120.0, "a SuperLink that answers", pause=0.2)
    finding.check(link.poll() is None, "the SuperLink starts", f"the SuperLink ended: {flower.said()}")
    with taken_port() as other:
        finding.check(*told("SuperNode", other, *flower.ends(*flower.supernode(port, other, 0))))
    for number in range(2):
        flower.start(*flower.supernode(port, free_port(), number))
    deployed = bench.folder("run")
    flower.run(port, *DEPLOYED, f"run_dir={deployed}")
    bench.show("deployed; now simulated")
    bench.tree.end_all()
    simulated = bench.finished(bench.start(*DEPLOYED, "audit=false", "simulation=inline"))
    if not (deployed / "summary.json").is_file():
        finding.check(False, "", f"the deployed run did not end: {flower.said()[-1000:]}")
        return
    found = differences(deployed, simulated.folder)
    finding.check(not found, "on free ports the bits of the simulation", "; ".join(found))


class _Flower:
    """Flower's processes, with a home of their own."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self._home = bench, bench.folder("home")
        self._log = self._home / "log"
        (self._home / "app").mkdir(parents=True)
        (self._home / "app" / "pyproject.toml").write_text(APP)

    def superlink(self, port: int) -> tuple[str, ...]:
        here = ("--host", "127.0.0.1", "--port", str(port))
        return ("flower-superlink", "--insecure", *here, "--disable-runtime-dependency-installation")

    def supernode(self, superlink: int, port: int, number: int) -> tuple[str, ...]:
        where = ("--superlink", f"127.0.0.1:{superlink}", "--host", "127.0.0.1", "--port", str(port))
        return ("flower-supernode", "--insecure", *where, "--node-config", f"partition-id={number} num-partitions=2")

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        environment = {**FLOWER, "FLWR_HOME": str(self._home)}
        return self._bench.tree.start(*command, log=self._log, environment=environment, cwd=self._home)

    def run(self, superlink: int, *overrides: str) -> None:
        """`flwr run` to its end, which tells nothing: a failed run ends with 0 as well."""
        address = f'address = "127.0.0.1:{superlink}"'
        connection = f'[superlink]\ndefault = "here"\n[superlink.here]\n{address}\ninsecure = true\n'
        (self._home / "config.toml").write_text(connection)
        words = f'overrides="{" ".join(overrides)}"'
        started = self.start("flwr", "run", str(self._home / "app"), "--stream", "--run-config", words)
        started.wait(timeout=SECONDS_FOR_A_RUN)

    def ends(self, *command: str) -> tuple[int | None, str]:
        """The exit code and the words of a process that should end at once; None where it goes on."""
        before = len(self.said())
        process = self.start(*command)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=90.0)
        code = process.returncode
        if code is None:
            process.terminate()
            process.wait(timeout=60.0)
        return code, self.said()[before:]

    def said(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""


def told(who: str, port: int, code: int | None, words: str) -> tuple[bool, str, str]:
    """Arguments of `Finding.check`: it ended by itself, not well, and one line names the port and says it is taken."""
    named = re.compile(rf"\b{port}\b")
    lines = [line.strip() for line in words.splitlines() if named.search(line) and TAKEN.search(line)]
    line = lines[-1] if lines else " ".join(words.split())[-200:]
    right = code not in (None, 0) and bool(lines)
    return right, f"{who}: exit {code}, `{line}`", f"{who}: {'goes on' if code is None else f'exit {code}'}, `{line}`"


@contextmanager
def taken_port() -> Iterator[int]:
    """A port on the loopback at which somebody else listens for the block."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        yield int(taken.getsockname()[1])


def free_port() -> int:
    """A port on the loopback below those that the system gives to outgoing connections."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _listens(port: int) -> bool:
    time.sleep(0.2)
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
