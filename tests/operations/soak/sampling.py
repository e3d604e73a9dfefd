"""What the processes of a run hold: memory, open files, shared memory; read from /proc."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.operations.processes import Process

SHARED = Path("/dev/shm")
PAGE = os.sysconf("SC_PAGE_SIZE")
ROLES = {"ray::ClientWorker": "clients", "ray::AttackWorker": "attacks"}


@dataclass
class Held:
    """By the processes of one role together.

    Attributes:
        rss, own: bytes in memory; `own` without files and what is shared, such as Ray's object store.
    """

    processes: int = 0
    rss: int = 0
    own: int = 0
    files: int = 0


@dataclass
class Sample:
    """One look at all processes of a run.

    Attributes:
        roles: `driver`, `clients`, `attacks`, and `ray` for everything else.
        shared: paths below /dev/shm that a process has mapped or open.
    """

    server_round: int
    seconds: float
    roles: dict[str, Held]
    shared: set[str] = field(default_factory=set)


def take_sample(server_round: int, seconds: float, driver: int, processes: Iterable[Process]) -> Sample:
    """Processes that end meanwhile are left out."""
    sample = Sample(server_round, seconds, {role: Held() for role in ("driver", "clients", "attacks", "ray")})
    for process in processes:
        with suppress(OSError, IndexError, ValueError):
            folder = Path(f"/proc/{process.pid}")
            pages = (folder / "statm").read_text().split()
            links = _links(folder / "fd")
            maps = (folder / "maps").read_text().splitlines()
            held = sample.roles[role_of(process, driver)]
            held.processes += 1
            held.rss += int(pages[1]) * PAGE
            held.own += (int(pages[1]) - int(pages[2])) * PAGE
            held.files += len(links)
            paths = [*links, *(line.split(maxsplit=5)[5] for line in maps if str(SHARED) in line)]
            sample.shared |= {path for path in paths if path.startswith(f"{SHARED}/")}
    return sample


def role_of(process: Process, driver: int) -> str:
    if process.pid == driver:
        return "driver"
    return next((role for title, role in ROLES.items() if process.title.startswith(title)), "ray")


def still_there(shared: Iterable[str]) -> list[str]:
    """Of the paths in shared memory those that have a name: what is only mapped goes with its processes."""
    return sorted(path for path in set(shared) if not path.endswith(" (deleted)") and Path(path).exists())


def _links(folder: Path) -> list[str]:
    links = []
    for path in folder.iterdir():
        with suppress(OSError):  # closed meanwhile
            links.append(str(path.readlink()))
    return links
