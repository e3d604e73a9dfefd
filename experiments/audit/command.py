"""`fedsim-audit`: no federation; what would each shared update give away?"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any

import torch

from attacks.building import build_attack, check_fit
from attacks.session import discard
from defenses.compose import build_chain
from experiments.audit.bounds import build_bounds, write_bounds
from experiments.audit.worker import UNCOMPUTED, AuditBatch, AuditedAttack, AuditWorker, Group, failed
from experiments.cli.call import console, say_doing
from experiments.cli.logs import log_to
from experiments.cli.places import find_observations
from experiments.cli.progress import Bars
from experiments.cli.validation import attacks_timeout, check_gpus, placement, worker_counts
from experiments.engine.choice import estimate_audit, with_engine
from experiments.engine.content import content_of, keep_content
from experiments.engine.reporting import reported
from experiments.engine.scratch import scratch_folder
from experiments.engine.setup import (
    Setup,
    engine,
    load_recorded,
    make_scheduler,
    make_writer,
    open_folder,
    own_gpus,
    prepare,
)
from fedsim.data import ImageSet
from fedsim.determinism import seeded_globals, torch_generator
from fedsim.errors import ConfigError, RunError, nearest
from fedsim.ground_truth import GroundTruth
from fedsim.metrics.accuracy import mean_softmax
from fedsim.observation import Observation, observation_name
from fedsim.report.wording import count
from fedsim.result import AttackResult
from fedsim.settings.commands import AuditConfig, JobConfig
from fedsim.settings.local.augment import STAGE
from fedsim.settings.schema import parse, plain
from fedsim.simulation.shipping import absolute
from fedsim.storage.observation_files import recorded_digest
from fedsim.storage.run_folder import RunFolder
from fedsim.tracking import Trackers
from server.attack_queue.results import ResultWriter, has_images
from server.sums.summing import FEWEST, Sums, in_groups

logger = getLogger(__name__)

RECORDED: Mapping[str, Callable[[Observation], Any]] = {
    "defenses": lambda one: one.defenses,
    "model settings": lambda one: one.architecture.spec,
    "fine-tuning": lambda one: one.finetune.to_record(),
    "kind of update": lambda one: one.update.kind,
}
"""What a report says once of all its updates."""


def run_audit(given: AuditConfig | Mapping[str, Any], root: Path) -> None:
    """One audit, from its settings to the report; raises ConfigError before anything is started."""
    start = time.perf_counter()
    config = parse(AuditConfig, given)
    config.check_audit()
    if config.observation is not None:
        _attack_recorded(config, config.observation, root, start)
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
    config = with_engine(config, count(len(updates), "update"), of_all)
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
            reported(folder, "audit", start),
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
    computed = done = total - sum(map(len, groups))
    ended = bool(writer.done)
    bars.set("updates", done, total)
    for group, results, attempts, stopped in _results(setup, groups, scratch):
        computed += len({one.result.client for one in results if not one.uncomputed})
        for one in results:
            writer.write(replace(one.result, attempts=attempts), one.truth)
        _tell_failures(results, log)
        if malformed := next((one for one in results if one.malformed), None):
            raise RunError(_blamed(malformed, setup))
        if scratch is not None and not stopped:
            _forget(scratch, group)
        for _ in group:
            done += 1
            bars.set("updates", done, total)
            if done % max(1, total // 10) == 0:
                bars.say(f"updates {done}/{total}")
    last = writer.failures.last
    if last is not None and not computed:
        raise RunError(f"no update could be computed, the last one because of {_because(last, log)}")
    _refuse_none(writer, ended, log)


def _tell_failures(results: list[AuditedAttack], log: Path) -> None:
    """On the console and in the log: each attack that failed, and once each update that there was none of."""
    announced = set()
    for one in results:
        update, reason = one.result.client, " ".join(one.result.reason.split())
        if one.result.status != "failed" or one.malformed:  # the error that ends the audit says it
            continue
        if not one.uncomputed:
            logger.error("%s failed on update %d: %s", one.result.attack, update, reason)
            console.print(f"{one.result.attack} failed on update {update}: {_because(one.result, log)}", markup=False)
        elif update not in announced:
            announced.add(update)
            logger.error("update %d:\n%s", update, one.result.fault)
            console.print(f"update {update} could not be computed: {_because(one.result, log)}", markup=False)


def _refuse_none(writer: ResultWriter, ended: bool, log: Path) -> None:
    """Raises RunError where no attack came to an end; `ended`: one did in an earlier call."""
    failures = writer.failures
    if failures.last is not None and not (ended or failures.ended):
        raise RunError(f"no attack came to an end, the last one because of {_because(failures.last, log)}")


def _because(result: AttackResult, log: Path) -> str:
    """The reason of a failure, and where its traceback is; a worker that was stopped or lost left none."""
    reason = " ".join(result.reason.removeprefix(UNCOMPUTED).split())
    return f"{reason} (traceback: {log})" if result.fault else reason


def _blamed(one: AuditedAttack, setup: Setup) -> str:
    """A malformed update, and whose doing it is."""
    defenses = ", ".join(setup.config.defense)
    doing = f"the training's doing, or that of defense=[{defenses}]" if defenses else "the training's own doing"
    return f"update {one.result.client}: {' '.join(one.result.reason.split())} ({doing})"


def _forget(scratch: Path, group: Group) -> None:
    """Results are on disk: nothing to go on from any more, neither for the group nor for one of it."""
    for attack in {attack for batch in group for attack in batch.attacks}:
        names = [observation_name(0, batch.number) for batch in group if attack in batch.attacks]
        for together in [names, *([name] for name in names)]:
            discard(scratch, together, attack)


def choose_images(setup: Setup) -> list[int]:
    """Positions in the training set of the pictures to audit.

    Raises:
        ConfigError: more are asked for than there are, or one that there is not.
    """
    audit, pictures = _audited(setup).audit, setup.data.train
    if isinstance(audit.select, list):
        return [_position(str(name), pictures) for name in audit.select]
    count = audit.num_images
    if count > len(pictures):
        raise ConfigError("audit.num_images", count, f"at most {_all_of(pictures, setup)}")
    if audit.select == "first":
        return sorted(range(len(pictures)), key=lambda position: pictures.ids[position])[:count]
    order = torch.randperm(len(pictures), generator=torch_generator(setup.config.seed, "audit")).tolist()
    if audit.select == "random":
        return order[:count]
    turns: dict[int, int] = {}
    ranked = []
    for position in order:
        label = int(pictures.labels[position])
        turns[label] = turns.get(label, 0) + 1
        ranked.append((turns[label], position))
    return [position for _, position in sorted(ranked, key=lambda entry: entry[0])][:count]


def _all_of(pictures: ImageSet, setup: Setup) -> str:
    """How many there are to audit, and what makes more of them where settings keep some back."""
    held = {key: setup.config.data.get(key) for key in ("test_fraction", "auxiliary_fraction")}
    every = " ".join(f"data.{key}=0" for key, share in held.items() if share)
    return f"{len(pictures):,}, the training images" + (f"; {every} makes every image one of them" if every else "")


def _position(name: str, pictures: ImageSet) -> int:
    if name not in pictures.ids:
        raise ConfigError("audit.select", name, f"the id of a training picture.{nearest(name, pictures.ids)}")
    return pictures.ids.index(name)


def open_or_resume(config: JobConfig, root: Path) -> RunFolder:
    """A new run folder, or the one of an earlier call with the same settings.

    Raises:
        ConfigError: the folder holds a run with other settings, or a matrix.
    """
    if (root / "matrix.json").exists():
        raise ConfigError("run_dir", root, fault="choose a new folder, this one holds a matrix")
    recorded = root / "config.yaml"
    before = recorded.read_text(encoding="utf-8") if recorded.exists() else None
    if before is None and (root / "attacks.jsonl").exists():
        raise ConfigError("run_dir", root, "a new folder; this one holds results without their settings")
    folder = open_folder(config, root, expected=before)
    folder.keep_rows("attacks", partial(has_images, folder))  # loss of power may have left empty ones
    return folder


def divide(chosen: list[int], batch_size: int, sums: Sums | None) -> list[tuple[int, tuple[int, ...]]]:
    """For each update that the server sees the number of its first client and its pictures.

    Raises:
        ConfigError: fewer clients than one sum takes.
    """
    clients = range(-(-len(chosen) // batch_size))
    if sums is not None and len(clients) < (fewest := sums.clients or FEWEST):
        pictures = fewest * batch_size
        raise ConfigError("audit.num_images", len(chosen), f"at least {pictures}: {sums.by} sums over {fewest} clients")
    groups = in_groups(clients, 1 if sums is None else sums.clients)
    return [(group[0], tuple(chosen[group[0] * batch_size : (group[-1] + 1) * batch_size])) for group in groups]


def _unfinished(
    config: JobConfig, updates: list[tuple[int, tuple[int, ...]]], writer: ResultWriter
) -> Iterator[AuditBatch]:
    for number, (first_client, positions) in enumerate(updates):
        name = observation_name(0, number)
        attacks = tuple(attack for attack in config.attack if (name, attack) not in writer.done)
        if attacks:
            yield AuditBatch(number, positions, attacks, first_client)


def _results(
    setup: Setup, groups: list[Group], scratch: Path | None
) -> Iterator[tuple[Group, list[AuditedAttack], int, bool]]:
    """Each group as it ends: its results, the attempts that they took, and whether it was stopped from outside."""
    config, simulation = _audited(setup), setup.config.simulation
    probs = None
    if setup.wants_auxiliary and len(setup.data.auxiliary) and groups:
        with seeded_globals(config.seed, "auxiliary", 0):
            probs = mean_softmax(setup.model, setup.data.auxiliary, setup.normaliser, config.client.training_mode)
    if simulation.engine == "inline" or not groups:
        worker = AuditWorker(config, own_gpus(config.client), probs, setup, scratch)
        for group in groups:
            yield group, worker.run(group), 1, False
        return
    import ray

    from fedsim.simulation.actor_pool import ActorPool

    shipped = absolute(plain(config)) if config.ray.address is not None else config
    actor = ray.remote(AuditWorker).options(**placement(config).clients.options())
    workers = worker_counts(config, len(groups), attackers=False)
    pool: ActorPool[Group] = ActorPool(
        lambda _: actor.remote(shipped, simulation.num_gpus, probs, None, scratch),
        workers,
        simulation.max_retries,
    )
    for group in groups:
        pool.submit(group, partial(_run_on, group))
    while pool.pending:
        # One call may take as long as its attacks on all of its updates may take together.
        limit = attacks_timeout(config, config.attack) * config.audit.victims
        for end in pool.wait(1.0) + pool.expire(limit):
            group, stopped = end.tag, end.error is not None
            lost = _lost(group, setup, end.error or "", end.seconds) if stopped else []
            results: list[AuditedAttack] = lost or end.value or []
            for one in results:
                if one.result.fault and not one.uncomputed:  # the worker's own log is not the run's
                    logger.error("attack %s failed:\n%s", one.result.attack, one.result.fault)
            yield group, results, end.attempts, stopped
    pool.close()


def _lost(group: Group, setup: Setup, reason: str, seconds: float) -> list[AuditedAttack]:
    """What was stopped; each attack on each update is said to have taken as long."""
    attacks = sum(len(batch.attacks) for batch in group)
    return [result for batch in group for result in failed(batch, setup, reason, seconds / max(attacks, 1))]


def _run_on(group: Group, worker: Any) -> Any:
    return worker.run.remote(group)


def _attack_recorded(config: AuditConfig, place: str, root: Path, start: float) -> None:
    """Attack what a past run captured; there is no truth, so nothing is scored.

    A record imports no class, and names only what is loaded: a defense of the user's own is loaded by choosing it.
    """
    check_gpus(config)
    attacks = {name: build_attack(name, settings) for name, settings in config.attack.items()}
    build_chain(config.defense)
    paths = list(find_observations(Path(place)))
    first = _check_recorded(paths)
    for name, attack in attacks.items():
        check_fit(name, attack, first.image_shape)
    say_doing(f"attacking {count(len(paths), 'recorded observation')}")
    config = with_engine(config, count(len(paths), "observation"))
    recorded = _as_recorded(config, first)
    with RunFolder(root).locked():
        folder = open_or_resume(recorded, root)
        keep_content(folder, {f"numbers in {path.name}": recorded_digest(path) for path in paths})
        trackers = Trackers(config.tracker, root)
        writer = make_writer(recorded, folder, trackers)
        with (
            trackers,
            reported(folder, "audit", start),
            log_to(folder.log),
            Bars(console) as bars,
            scratch_folder(folder, bars, resumable=True) as scratch,
            engine(config, 1, folder=root),
        ):
            ended = bool(writer.done)

            def keep(result: AttackResult, truth: GroundTruth | None) -> None:
                writer.write(result, truth)
                if result.status == "failed":
                    told = f"{result.attack} failed on {result.observation}: {_because(result, folder.log)}"
                    console.print(told, markup=False)

            scheduler = make_scheduler(config, keep, scratch)
            try:
                for path in paths:
                    observation = load_recorded(path)
                    finished = frozenset(attack for name, attack in writer.done if name == observation.name)
                    scheduler.submit(observation, None, finished)
                    bars.set("attacks", scheduler.finished, len(paths) * len(config.attack))
                scheduler.drain(lambda: bars.set("attacks", scheduler.finished, scheduler.submitted))
            finally:
                scheduler.close()
                writer.finish()
            _refuse_none(writer, ended, folder.log)


def _check_recorded(paths: list[Path]) -> Observation:
    """The first of them, of which the report takes the settings, and none is read for the first time later.

    Raises:
        ConfigError: one is damaged, is called as another is, by which results are kept, or has other settings.
    """
    first, called = load_recorded(paths[0]), dict[str, Path]()
    for path in paths:
        one = load_recorded(path)
        if (other := called.setdefault(one.name, path)) != path:
            fault = f"it is called {one.name} inside, as {other} is: give each a `client` or `server_round` of its own"
            raise ConfigError("observation", path, fault=fault)
        for what, of in RECORDED.items():
            if of(one) != of(first):
                wanted = "a report is of one: give each kind a folder of its own"
                raise ConfigError("observation", path, fault=f"it has other {what} than {paths[0]}, and {wanted}")
    return first


def _as_recorded(config: AuditConfig, observation: Observation) -> AuditConfig:
    """The settings that the report names, from the record instead of this call."""
    protocol, steps = observation.protocol, observation.update.kind != "gradient"
    same = ("batch_size", "label_smoothing", "training_mode", "precision", "max_grad_norm", "micro_batch_size")
    client = {name: getattr(protocol, name) for name in same}
    if steps:
        rates = {"lr": list(dict.fromkeys(protocol.lrs))}
        kept = ("momentum", "dampening", "nesterov", "betas", "eps", "weight_decay", "proximal_mu", "amsgrad")
        optimizer = {"_target_": protocol.optimizer, **rates, **{name: getattr(protocol, name) for name in kept}}
        client |= {"local_steps": protocol.steps, "optimizer": optimizer, "no_decay": bool(protocol.undecayed)}
    named = [dict(settings) for settings in observation.defenses]
    chain = {settings.pop("name"): settings for settings in named}
    audited: dict[str, Any] = {"num_images": None, "batch_size": protocol.batch_size}  # as many as the folder holds
    augment = chain.pop(STAGE, {}).get("transforms", [])
    return replace(
        config,
        model=observation.architecture.spec.to_dict(),
        finetune=observation.finetune.to_record(),
        data={"_target_": "recorded"},
        defense=chain,
        client=replace(config.client, share=observation.update.kind, augment=augment, **client),
        audit=replace(config.audit, **audited),
    )
