"""Faults of clients: one raises, hangs or shares NaN."""

import math
from pathlib import Path

from tests.operations.runs import CLIENTS, PLUGINS, Bench, Run, differences, results, rows
from tests.operations.table import Finding

AT_ROUND, AT_CLIENT = 3, 1
LIMITS = (30, 120, 480)
"""Seconds; the first that workers start within."""


def client_raises(bench: Bench, finding: Finding) -> None:
    _beside_inline(bench, finding, "raise", "RuntimeError: no more pictures")


def client_shares_nan(bench: Bench, finding: Finding) -> None:
    _beside_inline(bench, finding, "not-a-number", "values that are not finite")


def client_hangs(bench: Bench, finding: Finding) -> None:
    """The limit must leave the machine the time to start its workers, which counts in the first round."""
    reference = bench.reference()
    for limit in LIMITS:
        run = bench.finished(bench.small(_fault("hang", reference), f"round_timeout={limit}"))
        if not run.rows("metrics")[1]["failures"]:
            break
        bench.show(f"workers did not start within round_timeout={limit}, once more with a larger one")
    finding.say(f"round_timeout={limit}")
    _check_failure(finding, run, reference, f"no reply within {limit} s")
    slow = [row["round"] for row in run.rows("timings")[2:] if row["train"] > 0.9 * limit]
    finding.check(slow == [AT_ROUND], "no other round waited", f"rounds that waited for the limit: {slow}")


def _beside_inline(bench: Bench, finding: Finding, fault: str, error: str) -> None:
    """The fault on Ray's workers, and in one process: the same bits."""
    reference = bench.reference()
    run = bench.finished(bench.small(_fault(fault, reference)))
    _check_failure(finding, run, reference, error)
    alone = bench.finished(bench.small(_fault(fault, reference), "simulation=inline"))
    found = differences(run.folder, alone.folder)
    finding.check(not found, "same bits as in one process with the same fault", "; ".join(found))


def _fault(fault: str, reference: Path) -> str:
    """The override; the picture is one that the undisturbed run shows to be the client's."""
    wanted = ("labels", AT_ROUND, AT_CLIENT)
    row = next(row for row in rows(reference, "attacks") if (row["attack"], row["round"], row["client"]) == wanted)
    picture = row["images"][0]["image"]
    settings = f"_target_:{PLUGINS}.Misbehaves,fault:{fault},server_round:{AT_ROUND},picture:'{picture}'"
    return f"+defense.fault={{{settings}}}"


def _check_failure(finding: Finding, run: Run, reference: Path, error: str) -> None:
    """Exactly this client failed, in exactly this round; rounds before are as they were, and all others are whole."""
    rounds = run.rows("metrics")
    failures = [(row["round"], one["client"], one["error"]) for row in rounds for one in row["failures"]]
    right = len(failures) == 1 and failures[0][:2] == (AT_ROUND, AT_CLIENT) and error in failures[0][2]
    finding.check(
        right,
        f"round {AT_ROUND}: client {AT_CLIENT} failed: {failures[0][2] if failures else ''}",
        f"failures: {failures}",
    )
    before = [row for row in rows(reference, "metrics") if row["round"] < AT_ROUND]
    finding.check(rounds[:AT_ROUND] == before, "rounds before it are unchanged", "rounds before it are others")
    taking_part = [row["clients"] for row in rounds[1:]]
    expected = [CLIENTS - (row["round"] == AT_ROUND) for row in rounds[1:]]
    finding.check(taking_part == expected, "all others took part", f"clients of the rounds: {taking_part}")
    wanted = {key for key, row in results(reference).items() if (row["round"], row["client"]) != (AT_ROUND, AT_CLIENT)}
    there = results(run.folder).keys()
    finding.check(there == wanted, f"{len(wanted)} attack results", f"attacks: {sorted(there ^ wanted)}")
    losses = [row["loss"] for row in rounds]
    finding.check(all(math.isfinite(loss) for loss in losses), "loss finite", f"losses {losses}")
