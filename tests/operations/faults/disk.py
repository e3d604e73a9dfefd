"""Faults of the disk and of the whole machine: a killed driver, a full disk, damaged resume points."""

import os
import random
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.operations.runs import ROUNDS, SECONDS_OF_A_CLIENT, Bench, Run, check_same, results, rows
from tests.operations.table import Finding

MOMENTS, CHAINS = 10, 2
SEED = 5
GOES_ON = ("goes on after round", "the run begins anew")
DISK = 64 * 2**20
"""Bytes of the small disk: a run takes some 6 MB."""

TOO_LITTLE = 100_000
ARRAYS = "arrays.safetensors"


def driver_killed(bench: Bench, finding: Finding) -> None:
    """Two runs, each killed and resumed at five moments drawn over all its rounds and what comes after the last."""
    reference = bench.reference()
    draw = random.Random(SEED)
    killed, moments, left, lost = 0, [], 0, []
    for chain in range(CHAINS):
        # A moment is a round and a part of one; past the last round attacks are still at work.
        chosen = sorted(draw.uniform(-1.0, ROUNDS + 1.0) for _ in range(MOMENTS // CHAINS))
        run, resumed, had = bench.small(), False, []
        for moment in chosen:
            bench.show(f"run {chain + 1} of {CHAINS}, killed at round {moment:.2f}")
            began = time.monotonic()
            if not reach(run, moment, resumed):
                run.wait()
                break
            seconds = time.monotonic() - began
            killed += 1
            left += len(bench.kill_driver(run, agents=killed == MOMENTS))
            had += rows(run.folder, "attacks")
            moments.append(f"{len(run.rows('metrics')) - 1} ({seconds:.1f} s after its start)")
            resumed = (run.folder / "config.yaml").exists()
            run = bench.resume(run.folder) if resumed else bench.small(folder=run.folder)
        bench.show(f"run {chain + 1} of {CHAINS}, to its end")
        check_same(finding, run, reference)
        lost += not_kept(had, run.folder)
    finding.say(f"{killed} kills, after rounds {', '.join(moments)}; -1: before any")
    finding.check(killed == MOMENTS, "", f"{MOMENTS - killed} moments came after the end of the run")
    finding.check(not lost, "every result there at a kill is kept", f"lost or made again: {sorted(set(lost))}")
    told = "nothing outlived a driver (after the last kill Ray's own agents were waited for, which take a minute)"
    finding.check(left == 0, told, f"{left} processes outlived their drivers")


def not_kept(had: Iterable[dict[str, Any]], folder: Path) -> list[tuple[str, str]]:
    """Results whose line is no longer there as it was: one that was made again took other seconds."""
    there = rows(folder, "attacks")
    return [(row["observation"], row["attack"]) for row in had if row not in there]


def reach(run: Run, moment: float, resumed: bool) -> bool:
    """Wait for the moment; False where the run has ended by then.

    Rounds of a run that was resumed count from where this process says that it goes on: lines of those before are there
    already.
    """
    if moment < 0:  # before round 0: while settings are read, models built, workers started
        deadline = time.monotonic() + 10.0 * (moment + 1.0)
        while time.monotonic() < deadline and run.process.poll() is None:
            time.sleep(0.02)
        return run.process.poll() is None
    try:
        if resumed:
            run.wait_until(lambda: any(words in run.said for words in GOES_ON), "it goes on")
        run.wait_for_round(min(int(moment), ROUNDS))
    except RuntimeError:
        return False
    time.sleep((moment - int(moment)) * 3.0 * SECONDS_OF_A_CLIENT)
    return run.process.poll() is None


def disk_full(bench: Bench, finding: Finding) -> None:
    """Nothing but a run on a small disk, then something that takes all its room."""
    reference = bench.reference()
    with small_disk(bench.folder("disk")) as disk:
        if disk is None:
            finding.say("tmpfs cannot be mounted here, files limited by RLIMIT_FSIZE instead")
            _file_limit(bench, finding, reference)
            return
        finding.say(f"tmpfs of {DISK // 2**20} MiB")
        ballast = disk / "ballast"
        _fill(ballast, shutil.disk_usage(disk).free - TOO_LITTLE)
        early = bench.small(folder=disk / "early")
        code, line = early.wait(), _error(early)
        right = code == 2 and " free for a resume point" in line and not early.rows("metrics")
        finding.check(right, f"{TOO_LITTLE} bytes free: refused before it starts", f"{TOO_LITTLE} bytes: {code} {line}")
        ballast.unlink()
        shutil.rmtree(disk / "early")
        run = bench.small(folder=disk / "run")
        run.wait_for_round(2)
        _fill(ballast, None)
        code, line = run.wait(), _error(run)
        kept = results(run.folder)
        right = code == 2 and "No space left on device" in line and "goes on" in line
        finding.check(right, f"full after round 2: exit 2, `{_short(line, disk)}`", f"exit {code}: {run.last_words}")
        finding.check("Traceback" not in run.said, "no traceback", "a traceback")
        ballast.unlink()
        again = bench.resume(run.folder)
        check_same(finding, again, reference)
        lost = [key for key, row in kept.items() if results(again.folder).get(key) != row]
        finding.check(not lost, f"{len(kept)} results from before are kept", f"lost: {lost}")
        left = bench.tree.left_after(30.0)
        finding.check(not left, "no process left", f"processes left: {[one.title for one in left]}")


def _file_limit(bench: Bench, finding: Finding, reference: Path) -> None:
    """In one process: Ray's shared memory is a file too, and would not start."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        run = bench.small("simulation=inline")
        code = run.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    finding.check(code != 0, f"exit {code}: {_error(run)}", "the run ended well")
    check_same(finding, bench.resume(run.folder), reference)


def point_corrupted(bench: Bench, finding: Finding) -> None:
    """One bit of the newest resume point is another."""

    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    _damaged_point(bench, finding, flip)


def point_truncated(bench: Bench, finding: Finding) -> None:
    """The newest resume point lacks its end."""

    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-100])

    _damaged_point(bench, finding, cut)


def _damaged_point(bench: Bench, finding: Finding, damage: Callable[[Path], None]) -> None:
    """The newest point, then every one: one is enough, none is a clear line that changes nothing.

    There are two of them; three where the run was killed after it kept a new one and before it removed the oldest.
    """
    reference = bench.reference()
    run = bench.small()
    run.wait_for_round(3)
    bench.kill_driver(run)
    points = sorted((run.folder / "resume").glob("round-*"))
    if len(points) not in (2, 3):
        raise RuntimeError(f"{len(points)} resume points after round 3, not 2 or 3")
    damage(points[-1] / ARRAYS)
    every = bench.folder("run")
    shutil.copytree(run.folder, every)
    again = bench.resume(run.folder)
    check_same(finding, again, reference)
    newest, older = points[-1].name, points[-2].name
    told = f"{newest} is damaged" in again.said and f"goes on after round {int(older[6:])}" in again.said
    finding.check(told, f"{newest} said to be damaged, {older} used", f"said: {again.said[:300]}")
    for point in points[:-1]:
        damage(every / "resume" / point.name / ARRAYS)
    before = _content(every)
    none = bench.resume(every)
    code, line = none.wait(), _error(none)
    right = code == 2 and "every resume point in it is damaged" in line
    finding.check(right, "every one damaged: exit 2 and one line", f"every one damaged: {code} {none.last_words}")
    finding.check(_content(every) == before, "nothing touched then", "files changed though nothing could be resumed")


@contextmanager
def small_disk(path: Path) -> Iterator[Path | None]:
    """A tmpfs of `DISK` bytes for the block; None where this user may not mount one."""
    path.mkdir()
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or mount is None or unmount is None:
        yield None
        return
    command = [mount, "-t", "tmpfs", "-o", f"size={DISK}", "fedsim-faults", str(path)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        yield None
        return
    try:
        yield path
    finally:
        # Lazily: a process that is still at work in it is ended with the table.
        subprocess.run([unmount, "-l", str(path)], capture_output=True, check=True)


def _fill(path: Path, size: int | None) -> None:
    """A file of so many bytes; None: of all that there is room for."""
    block = bytes(2**16)
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while size is None or file.tell() < size:
            file.write(block if size is None else block[: size - file.tell()])


def _error(run: Run) -> str:
    """The line that says why."""
    return next((line for line in run.said.splitlines() if line.startswith("error: ")), "no line `error: …`")


def _short(line: str, disk: Path) -> str:
    return line.replace(str(disk), "DISK")


def _content(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}
