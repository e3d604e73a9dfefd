"""`fedsim-audit`: no federation; what would each shared update give away?"""

import time
from collections import Counter, deque
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any

from attacks.running import breaks_process
from attacks.session import discard
from experiments.audit.bounds import build_bounds, write_bounds
from experiments.audit.failures import because, blamed, refuse_none, tell_failures
from experiments.audit.images import choose_images, divide
from experiments.audit.recorded import attack_recorded
from experiments.audit.worker import AuditBatch, AuditedAttack, AuditWorker, Group, failed
from experiments.cli.call import console, say_doing
from experiments.cli.logs import log_to
from experiments.cli.progress import Bars
from experiments.cli.validation import attacks_timeout, placement, worker_counts
from experiments.engine.choice import estimate_audit, with_engine
from experiments.engine.content import content_of, keep_content
from experiments.engine.folders import as_began, open_or_resume
from experiments.engine.reporting import reported
from experiments.engine.scratch import scratch_folder
from experiments.engine.setup import (
    Setup,
    engine,
    make_writer,
    own_gpus,
    prepare,
)
from fedsim.determinism import seeded_globals
from fedsim.errors import RunError
from fedsim.metrics.accuracy import mean_softmax
from fedsim.observation import observation_name
from fedsim.report.wording import count
from fedsim.result import AttackResult
from fedsim.settings.commands import AuditConfig, JobConfig
from fedsim.settings.schema import parse, plain
from fedsim.simulation.shipping import absolute
from fedsim.storage.run_folder import RunFolder
from fedsim.tracking import Trackers
from server.attack_queue.results import ResultWriter

logger = getLogger(__name__)


def run_audit(given: AuditConfig | Mapping[str, Any], root: Path) -> None:
    """One audit, from its settings to the report; raises ConfigError before anything is started."""
    start = time.perf_counter()
    config = parse(AuditConfig, given)
    config.check_audit()
    if config.observation is not None:
        attack_recorded(config, config.observation, root, start)
        return
    say_doing("reading the data, building the model")
    audit_prepared(prepare(config), root, start)


def _audited(setup: Setup) -> AuditConfig:
    assert isinstance(setup.config, AuditConfig)
    return setup.config


def audit_prepared(setup: Setup, root: Path, start: float) -> None:
    """An audit of checked settings, whatever they were built from.

    Args:
        start: `time.perf_counter()` when it began.
    """
    config = _audited(setup)
    bounds = build_bounds(config.bound)
    victims = config.audit.victims
    chosen = choose_images(setup)
    images = setup.data.train.subset(chosen)
    setup.refuse_learned([images])
    setup = setup.attacking(images)
    updates = divide(chosen, config.audit.batch_size, setup.sums)
    of_all = partial(estimate_audit, setup, -(-len(updates) // victims))
    config = with_engine(as_began(config, root), count(len(updates), "update"), of_all)
    setup = replace(setup, config=config)
    with RunFolder(root).locked():
        folder = open_or_resume(config, root)
        keep_content(folder, content_of(setup, [images]))
        trackers = Trackers(config.tracker, root)
        writer = make_writer(config, folder, trackers, setup)
        batches = list(_unfinished(config, updates, writer))
        total, left = len(updates), len(batches)
        if config.attack and left < total:
            console.print(
                f"{total - left} of {total} updates were finished by an earlier call; another run_dir starts anew",
                markup=False,
            )
        groups = [Group(batches[start : start + victims]) for start in range(0, left, victims)]
        with (
            trackers,
            reported(folder, "audit", start, goes_on=bool(writer.done)),
            log_to(folder.log),
            Bars(console) as bars,
            scratch_folder(folder, bars, resumable=True) as scratch,
        ):
            try:
                say_doing(f"computing and attacking {count(left, 'update')}, in {root}")
                with engine(config, len(groups), attackers=False, folder=folder.root):
                    _write_results(setup, groups, writer, bars, total, scratch, folder.log)
                if bounds:
                    say_doing(f"computing {count(len(bounds), 'bound')}")
                    write_bounds(bounds, setup, updates, folder)
            finally:
                writer.finish()


def _write_results(
    setup: Setup, groups: list[Group], writer: ResultWriter, bars: Bars, total: int, scratch: Path | None, log: Path
) -> None:
    """As they come.

    Raises:
        RunError: an update is malformed, there is not one that could be attacked, or every attack failed on each.
    """
    left = Counter({batch.number: len(batch.attacks) for group in groups for batch in group})
    computed = done = total - len(left)
    ended, told = bool(writer.done), set[int]()
    bars.set("updates", done, total)
    for group, results, attempts, stopped in _results(setup, groups, scratch, writer.broke):
        computed += len({one.result.client for one in results if not one.uncomputed})
        for one in results:
            writer.write(replace(one.result, attempts=attempts), one.truth)
        writer.flush()
        tell_failures(results, log, told)
        if malformed := next((one for one in results if one.malformed), None):
            raise RunError(blamed(malformed, setup))
        if scratch is not None and not stopped:
            _forget(scratch, group)
        for batch in group:
            left[batch.number] -= len(batch.attacks)
            if left[batch.number]:
                continue
            done += 1
            bars.set("updates", done, total)
            if done % max(1, total // 10) == 0:
                bars.say(f"updates {done}/{total}")
    last = writer.failures.last
    if last is not None and not computed:
        raise RunError(f"no update could be computed, the last one because of {because(last, log)}")
    refuse_none(writer, ended, log)


def _forget(scratch: Path, group: Group) -> None:
    """Results are on disk: nothing to go on from any more, neither for the group nor for one of it."""
    for attack in {attack for batch in group for attack in batch.attacks}:
        names = [observation_name(0, batch.number) for batch in group if attack in batch.attacks]
        for together in [names, *([name] for name in names)]:
            discard(scratch, together, attack)


def _unfinished(
    config: JobConfig, updates: list[tuple[int, tuple[int, ...]]], writer: ResultWriter
) -> Iterator[AuditBatch]:
    for number, (first_client, positions) in enumerate(updates):
        name = observation_name(0, number)
        attacks = tuple(attack for attack in config.attack if (name, attack) not in writer.done)
        if attacks:
            yield AuditBatch(number, positions, attacks, first_client)


def _results(
    setup: Setup, groups: list[Group], scratch: Path | None, broke: Container[str] = ()
) -> Iterator[tuple[Group, list[AuditedAttack], int, bool]]:
    """Each attack on a group as it ends: its results, their attempts, and whether it was stopped from outside.

    Args:
        broke: attacks that broke CUDA before; in this process they come last.
    """
    config, simulation = _audited(setup), setup.config.simulation
    probs = None
    if setup.wants_auxiliary and len(setup.held) and groups:
        with seeded_globals(config.seed, "auxiliary", 0):
            probs = mean_softmax(setup.model, setup.held, setup.normaliser, config.client.training_mode)
    if simulation.engine == "inline" or not groups:
        worker = AuditWorker(config, own_gpus(config.client), probs, scratch, setup=setup)
        each = (own for group in groups for own in group.by_attack())
        for own in sorted(each, key=lambda own: own[0].attacks[0] in broke):
            yield own, (results := worker.run(own)), 1, False
            if (broken := _breaking(results)) is not None:
                raise RunError(f"{broken.attack} on {broken.observation}: {broken.reason}")
        return
    import ray

    from fedsim.simulation.actor_pool import ActorPool, Finished

    shipped = absolute(plain(config)) if config.ray.address is not None else config
    actor = ray.remote(AuditWorker).options(**placement(config).clients.options())
    workers = worker_counts(config, len(groups), attackers=False)
    pool: ActorPool[Group] = ActorPool(
        lambda _: actor.remote(shipped, simulation.num_gpus, probs, scratch, attacked=setup.attacked),
        workers,
        simulation.max_retries,
        spent=lambda results: _breaking(results) is not None,
    )
    waiting: deque[tuple[Any, deque[Group]]] = deque((None, deque(group.by_attack())) for group in groups)
    rest: dict[Group, deque[Group]] = {}
    held: dict[Any, set[int]] = {}
    computed: set[Group] = set()

    def limit(group: Group, attempt: int) -> float:
        """Seconds for its attack on all of its updates; to compute them besides it has those of all attacks."""
        attacks = group[0].attacks if group in computed and attempt == 1 else config.attack
        return attacks_timeout(config, attacks) * config.audit.victims

    ends: list[Finished[Group]] = []
    while waiting or ends or pool.pending:
        while waiting and pool.has_nothing_to_do:
            worker, parts = waiting.popleft()
            rest[group := parts.popleft()] = parts
            kept = {batch.number for batch in group} <= held.get(worker, set())
            if pool.submit(group, partial(_run_on, group), kept_by=worker if kept else None):
                computed.add(group)
        for end in ends:  # while the workers go on
            group, stopped = end.tag, end.error is not None
            lost = _lost(group, setup, end.error or "", end.seconds) if stopped else []
            results = lost or end.value or []
            for one in results:
                if one.result.fault and not one.uncomputed:  # the worker's own log is not the run's
                    logger.error("attack %s failed:\n%s", one.result.attack, one.result.fault)
            yield group, results, end.attempts, stopped
        ends = pool.wait(1.0) + pool.expire(limit)
        for end in ends:
            held[end.actor] = {batch.number for batch in end.tag} if end.error is None else set()
            if not (parts := rest.pop(end.tag)):
                continue
            if end.error is None:
                waiting.appendleft((end.actor, parts))
            else:
                waiting.append((None, parts))
    pool.close()


def _breaking(results: list[AuditedAttack]) -> AttackResult | None:
    """The first by which its process can attack nothing more."""
    return next((one.result for one in results if breaks_process(one.result)), None)


def _lost(group: Group, setup: Setup, reason: str, seconds: float) -> list[AuditedAttack]:
    """What was stopped; each attack on each update is said to have taken as long."""
    attacks = sum(len(batch.attacks) for batch in group)
    return [result for batch in group for result in failed(batch, setup, reason, seconds / max(attacks, 1))]


def _run_on(group: Group, worker: Any) -> Any:
    return worker.run.remote(group)
