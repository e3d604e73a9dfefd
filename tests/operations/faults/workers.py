"""Faults of workers: killed in training, killed in an attack, gone with their node."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from tests.operations.processes import Process, wait_until
from tests.operations.runs import SECONDS_FOR_A_RUN, Bench, Run, check_same, rows
from tests.operations.table import Finding

TRAINS, ATTACKS = "ray::ClientWorker.run", "ray::AttackWorker.attack"
DIED = "a worker died"
"""In fedsim.log."""

NODES = 3


def worker_killed(bench: Bench, finding: Finding) -> None:
    """SIGKILL to a client worker while it trains."""
    reference = bench.reference()
    run = bench.small()
    run.wait_for_round(2)
    finding.say(f"{_kill(bench, run, TRAINS).title} killed after round {len(run.rows('metrics')) - 1}")
    check_same(finding, run, reference)
    _check_noticed(finding, run)


def attack_worker_killed(bench: Bench, finding: Finding) -> None:
    """SIGKILL to an attack worker in an attack."""
    reference = bench.reference()
    run = bench.small()
    run.wait_for_round(2)
    finding.say(f"{_kill(bench, run, ATTACKS).title} killed after round {len(run.rows('metrics')) - 1}")
    check_same(finding, run, reference)
    again = [row["observation"] for row in run.rows("attacks") if row["attempts"] > 1]
    finding.check(len(again) == 1, f"{len(again)} attack made twice", f"attacks made more than once: {again}")


def node_lost(bench: Bench, finding: Finding) -> None:
    """One of three nodes goes in mid-round, with its raylet and its workers."""
    reference = bench.reference()
    try:
        _lose_node(bench, finding, reference)
    finally:
        # A cluster that was killed leaves its address, and Ray would take it for one to join.
        (bench.scratch / "ray" / "ray_current_cluster").unlink(missing_ok=True)


def _lose_node(bench: Bench, finding: Finding, reference: Path) -> None:
    log = bench.folder("log")
    command = (sys.executable, "-m", "tests.operations.faults.nodes", str(NODES))
    cluster = bench.tree.start(*command, log=log, pipe=True)
    assert cluster.stdin is not None
    assert cluster.stdout is not None
    first = cluster.stdout.readline().decode().split()
    if not first:
        raise RuntimeError(f"the test cluster does not start: {log.read_text()[-500:]}")
    address, raylets = first[0], [int(pid) for pid in first[1:]]
    run = bench.small(f"ray.address={address}")
    run.wait_for_round(2)
    chosen: list[Process] = []

    def found() -> bool:
        chosen[:] = [one for one in bench.tree.members(TRAINS) if one.parent in raylets[1:]]
        return bool(chosen)

    run.wait_until(found, "a client on a node that is not the head")
    node = raylets.index(chosen[0].parent)
    cluster.stdin.write(f"{node}\n".encode())
    cluster.stdin.flush()
    gone = cluster.stdout.readline().decode().strip()
    finding.say(f"node {gone} of {NODES} removed after round {len(run.rows('metrics')) - 1}, a client at work on it")
    check_same(finding, run, reference)
    _check_noticed(finding, run)
    cluster.stdin.close()
    cluster.wait(timeout=SECONDS_FOR_A_RUN)
    left = bench.tree.left_after(30.0)
    finding.check(not left, "no process left", f"processes left: {[one.title for one in left]}")


def _kill(bench: Bench, run: Run, title: str) -> Process:
    """SIGKILL to the first process with this title; it is waited for."""
    killed: list[Process] = []

    def look() -> bool:
        for one in bench.tree.members(title)[:1]:
            with suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
                killed.append(one)
        return bool(killed)

    run.wait_until(look, f"there was a process {title}")
    wait_until(lambda: killed[0].pid not in {one.pid for one in bench.tree.members()}, 30.0, "the end of a killed one")
    return killed[0]


def _check_noticed(finding: Finding, run: Run) -> None:
    noticed = DIED in (run.folder / "fedsim.log").read_text(encoding="utf-8")
    failures = [failure for row in rows(run.folder, "metrics") for failure in row["failures"]]
    finding.check(noticed, "the loss is in fedsim.log", "fedsim.log says nothing of a worker that died")
    finding.check(not failures, "no client failed", f"clients failed: {failures}")
