"""`fedsim-matrix`: every attack against every defense, beside what each defense costs in accuracy."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from rich.console import Console

from attacks.building import build_attack
from experiments.audit.images import choose_images
from experiments.cli.call import console, say_doing
from experiments.cli.machine import cores
from experiments.cli.places import refuse_runs
from experiments.cli.progress import Bars
from experiments.cli.validation import attacks_timeout, check_federated, worker_counts
from experiments.engine.choice import Estimate, estimate_audit, estimate_jobs, estimate_run, with_engine
from experiments.engine.content import content_of, federated_content
from experiments.engine.setup import Setup, engine, prepare
from experiments.matrix.progress import MatrixProgress, Watch, describe_end, read_matrix
from experiments.matrix.rows import (
    Asked,
    Composer,
    audit_config,
    described,
    read_columns,
    read_rows,
    training_config,
)
from experiments.matrix.units import AUDIT, TRAINING, MatrixRun, UnitEnd, UnitWorker, check_unit, finished, run_unit
from fedsim.errors import ConfigError, RunError
from fedsim.report.matrix.files import build_matrix_report, write_matrix
from fedsim.report.matrix.verdict import verdicts
from fedsim.report.matrix.wording import few
from fedsim.report.wording import count
from fedsim.settings.commands import AuditConfig, MatrixConfig, RunConfig
from fedsim.settings.composition import Config
from fedsim.settings.groups import AuditedImages
from fedsim.settings.schema import parse, plain
from fedsim.simulation.shipping import absolute
from fedsim.storage.durable import locked

SECONDS_BETWEEN_LOOKS = 1.0
"""Between two looks at the runs on Ray."""


def run_matrix(given: MatrixConfig | Mapping[str, Any], root: Path) -> None:
    """All rows, from checked settings to the page; goes on where an earlier call in the same folder stopped.

    Raises:
        ConfigError: a setting that no row can work with; nothing has been started then.
        RunError: some runs failed; the page stands, with all that the others gave.
    """
    refuse_runs(root)
    say_doing("composing the runs of all rows and columns")
    progress = plan_matrix(parse(MatrixConfig, given), root)
    root.mkdir(parents=True, exist_ok=True)
    with locked(root):
        _run(progress)


def _run(progress: MatrixProgress) -> None:
    config, root = progress.config, progress.root
    for unit in progress.units:
        check_unit(unit)
        if (end := finished(unit)) is not None:
            progress.ends[unit] = end
    if progress.ends:
        console.print(f"{len(progress.ends)} of {len(progress.units)} runs were finished earlier", markup=False)
    left = len(progress.units) - len(progress.ends)
    say_doing(f"training and auditing {count(len(progress.rows), 'row')} in {count(left, 'run')}")
    shared = config.matrix.parallel or config.ray.address is not None  # else a run may ask for another Ray of its own
    if not shared and config.simulation.resources:  # which the rows' own Ray has, or has not
        with engine(config, min(left, 1), attackers=False):
            pass
    screen = Console(highlight=False, soft_wrap=True)  # of its own: those of the runs are quiet
    try:
        with (
            engine(config, min(left, cores()), attackers=False, folder=root) if shared else nullcontext(),
            Bars(screen) as bars,
            Watch(progress, bars),
        ):
            for unit, end in _ends(progress):
                progress.end(unit, end)
                write_matrix(read_matrix(progress), root)
                bars.say(describe_end(progress, unit, end))
    finally:
        matrix = read_matrix(progress)
        write_matrix(matrix, root)
        page = build_matrix_report(root)
    for words in (*verdicts(matrix), *(": ".join(one) for one in few(matrix))):
        console.print(words, markup=False)
    console.print(f"report  {page}", markup=False)
    console.print(str(root), markup=False)
    if failed := [unit.title for unit, end in progress.ends.items() if end.status == "failed"]:
        raise RunError(f"failed, and tried again by the next call: {'; '.join(failed)}")


def plan_matrix(config: MatrixConfig, root: Path) -> MatrixProgress:
    """Compose every run of the matrix; what no row could work with is refused here."""
    matrix = config.matrix
    rows, columns = read_rows(matrix), read_columns(matrix)
    composer = Composer()
    attacks = {column.name: composer.attack(column) for column in columns}
    undefended = plain(config)
    federated = parse(RunConfig, training_config(undefended))
    check_federated(federated)
    blind = {name for name, settings in attacks.items() if build_attack(name, settings).baseline}
    told = [described(column, attacks[column.name], column.name in blind) for column in columns]
    training, audit = prepare(federated), prepare(parse(AuditConfig, audit_config(undefended, attacks)))
    chosen = choose_images(audit)
    content = {TRAINING: federated_content(training), AUDIT: content_of(audit, [audit.data.train.subset(chosen)])}
    units: list[MatrixRun] = []
    folder = root.resolve() / "rows"
    for row in rows:
        seeds = range(config.seed, config.seed + matrix.seeds)
        composed = [composer.row(row, seed) for seed in seeds]
        _check_row(row, composed[0])
        trainings = [
            MatrixRun(
                row.name,
                TRAINING,
                str(seed),
                folder / row.name / f"training-{seed}",
                training_config(settings),
                content[TRAINING],
            )
            for seed, settings in zip(seeds, composed, strict=True)
        ]
        units += trainings
        for state in matrix.states:
            last = None
            if state == "trained":
                last = trainings[0].folder / "checkpoints" / f"round-{composed[0]['num_rounds']:05d}.safetensors"
            settings = audit_config(composed[0], attacks, None if last is None else str(last))
            place = folder / row.name / f"audit-{state}"
            units.append(MatrixRun(row.name, AUDIT, state, place, settings, content[AUDIT], last))
    config = _with_engine(config, units, training, audit, len(chosen))
    units = [unit.on(config.simulation.engine) for unit in units]
    return MatrixProgress(config, root, rows, told, units, len(training.data.test))


def _check_row(row: Asked, settings: Config) -> None:
    """Raises ConfigError for what no training or audit could work with; a defense's own refusal is a result."""
    try:
        check_federated(parse(RunConfig, training_config(settings)))
        parse(AuditedImages, settings["audit"], "audit").check_batches()
    except ConfigError as error:
        raise ConfigError(f"matrix.defenses.{row.name}", row.settings or "[]", fault=str(error)) from error


def _with_engine(
    config: MatrixConfig, units: Sequence[MatrixRun], training: Setup, audit: Setup, images: int
) -> MatrixConfig:
    """One engine for all units, as if each took as long as the undefended ones."""

    def of_all() -> Estimate:
        groups = ceil(images / config.audit.batch_size / config.audit.victims)
        seconds = {TRAINING: estimate_run(training).inline, AUDIT: estimate_audit(audit, groups).inline}
        return estimate_jobs(config, [seconds[unit.kind] for unit in units])

    return with_engine(config, count(len(units), "run"), of_all)


def _ends(progress: MatrixProgress) -> Iterator[tuple[MatrixRun, UnitEnd]]:
    """Each unit as it ends. An audit of the trained model waits for its row's first training."""
    config = progress.config
    waiting = [unit for unit in progress.units if unit not in progress.ends]
    if waiting and config.matrix.parallel and config.simulation.engine == "ray":
        yield from _side_by_side(progress, waiting)
        return
    for unit in waiting:
        progress.running.append(unit)
        yield unit, _untrained(progress, unit) or run_unit(unit)


def _side_by_side(progress: MatrixProgress, waiting: list[MatrixRun]) -> Iterator[tuple[MatrixRun, UnitEnd]]:
    """A unit for each worker, within one process: small runs spend most of their time starting workers otherwise."""
    import ray

    from fedsim.simulation.actor_pool import ActorPool

    simulation = progress.config.simulation
    workers = worker_counts(progress.config, len(waiting))
    actor = ray.remote(UnitWorker).options(num_cpus=simulation.num_cpus)
    progress.workers = max(1, workers)
    pool: ActorPool[MatrixRun] = ActorPool(lambda _: actor.remote(simulation.threads), workers, simulation.max_retries)
    try:
        while waiting or pool.pending:
            for unit in list(waiting):
                if pool.pending >= workers + 1 or (unit.checkpoint is not None and _training(progress, unit) is None):
                    continue
                waiting.remove(unit)
                if (end := _untrained(progress, unit)) is not None:
                    yield unit, end
                    continue
                pool.submit(unit, partial(_run_on, _inline(unit, plain(simulation))))
                progress.running.append(unit)
            for ended in pool.wait(SECONDS_BETWEEN_LOOKS) + pool.expire(lambda unit, _: _limit(progress, unit)):
                yield ended.tag, ended.value or UnitEnd("failed", ended.error or "")
    finally:
        pool.close()


def _inline(unit: MatrixRun, simulation: Mapping[str, Any]) -> MatrixRun:
    """The unit for a worker, which runs it within its process, on a cluster in another working directory."""
    config = unit.config if unit.config["ray"]["address"] is None else absolute(unit.config)
    return replace(unit, config={**config, "simulation": {**simulation, "engine": "inline"}})


def _run_on(unit: MatrixRun, worker: Any) -> Any:
    return worker.run.remote(unit)


def _limit(progress: MatrixProgress, unit: MatrixRun) -> float:
    """Seconds that it may take: as long as all rounds, or all of its attacks, may take together; a row has its own."""
    rounds: int = unit.config.get("num_rounds", progress.config.num_rounds)
    limit: float = unit.config.get("round_timeout", progress.config.round_timeout) * rounds
    if unit.kind == TRAINING:
        return limit
    audit = parse(AuditConfig, unit.config)
    return max(limit, attacks_timeout(audit, set(audit.attack)) * audit.audit.count)


def _training(progress: MatrixProgress, audit: MatrixRun) -> UnitEnd | None:
    """The end of the training whose checkpoint the audit needs."""
    training = next(unit for unit in progress.units if unit.row == audit.row and unit.kind == TRAINING)
    return progress.ends.get(training)


def _untrained(progress: MatrixProgress, unit: MatrixRun) -> UnitEnd | None:
    """Why an audit of a trained model cannot be: its training did not end well."""
    training = _training(progress, unit) if unit.checkpoint is not None else None
    if training is None or training.status == "done":
        return None
    return UnitEnd(training.status, f"without a trained model: {training.reason}")
