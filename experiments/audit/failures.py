"""What an audit says of attacks and updates that failed."""

from logging import getLogger
from pathlib import Path

from experiments.audit.worker import UNCOMPUTED, AuditedAttack
from experiments.cli.call import console
from experiments.engine.setup import Setup
from fedsim.errors import RunError
from fedsim.result import AttackResult
from server.attack_queue.results import ResultWriter

logger = getLogger(__name__)


def tell_failures(results: list[AuditedAttack], log: Path, announced: set[int]) -> None:
    """On the console and in the log: each attack that failed, and once each update that there was none of.

    Args:
        announced: numbers of the latter, which are added to it.
    """
    for one in results:
        update, reason = one.result.client, " ".join(one.result.reason.split())
        if one.result.status != "failed" or one.malformed:  # the error that ends the audit says it
            continue
        if not one.uncomputed:
            logger.error("%s failed on update %d: %s", one.result.attack, update, reason)
            console.print(f"{one.result.attack} failed on update {update}: {because(one.result, log)}", markup=False)
        elif update not in announced:
            announced.add(update)
            logger.error("update %d:\n%s", update, one.result.fault)
            console.print(f"update {update} could not be computed: {because(one.result, log)}", markup=False)


def refuse_none(writer: ResultWriter, ended: bool, log: Path) -> None:
    """Raises RunError where no attack came to an end; `ended`: one did in an earlier call."""
    failures = writer.failures
    if failures.last is not None and not (ended or failures.ended):
        raise RunError(f"no attack came to an end, the last one because of {because(failures.last, log)}")


def because(result: AttackResult, log: Path) -> str:
    """The reason of a failure, and where its traceback is; a worker that was stopped or lost left none."""
    reason = " ".join(result.reason.removeprefix(UNCOMPUTED).split())
    return f"{reason} (traceback: {log})" if result.fault else reason


def blamed(one: AuditedAttack, setup: Setup) -> str:
    """A malformed update, and whose doing it is."""
    defenses = ", ".join(setup.config.defense)
    doing = f"the training's doing, or that of defense=[{defenses}]" if defenses else "the training's own doing"
    return f"update {one.result.client}: {' '.join(one.result.reason.split())} ({doing})"
