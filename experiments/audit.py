"""`fedsim-audit`: no federation; what would each shared update give away?"""

import time
import traceback
from collections.abc import Iterator
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any

import torch

from defenses.compose import load_wrappers
from experiments.audit_worker import AuditBatch, AuditResult, AuditWorker
from experiments.cli import console, run_cli
from experiments.logs import log_to
from experiments.progress import Bars
from experiments.setup import (
    Setup,
    engine,
    make_scheduler,
    make_writer,
    open_folder,
    prepare,
    reported,
)
from experiments.validation import check_audit, check_common, worker_counts
from fedsim.composition import Config
from fedsim.data import ImageSet
from fedsim.determinism import seeded_globals, torch_generator
from fedsim.errors import ConfigError, nearest
from fedsim.evaluation import mean_softmax
from fedsim.ground_truth import GroundTruth
from fedsim.observation import Observation, load_observation, observation_name
from fedsim.tracking import RunFolder, Trackers
from server.attacking import Outcome, build_attack
from server.results import Job, ResultWriter

logger = getLogger(__name__)


def main() -> None:
    """Entry point of the console script."""
    run_cli("audit", run_audit)


def run_audit(config: Config, root: Path) -> None:
    """One audit, from checked settings to the report.

    Raises:
        ConfigError: a setting cannot work; nothing has been started then.
    """
    start = time.perf_counter()
    if config["observation"] is not None:
        _attack_recorded(config, root, start)
        return
    check_audit(config)
    setup = prepare(config)
    chosen = choose_pictures(setup)
    folder = open_or_resume(config, root)
    trackers = Trackers(config["tracker"], root)
    writer = make_writer(config, folder, trackers)
    batches = list(_unfinished(config, chosen, writer))
    total, left = -(-len(chosen) // config["audit"]["batch_size"]), len(batches)
    if left < total:
        console.print(f"{total - left} of {total} updates were finished by an earlier call", markup=False)
    with reported(folder, "audit", start), log_to(folder.log), Bars(console) as bars:
        try:
            with engine(config, max(left, 1), attackers=False):
                _write_results(setup, batches, writer, bars, total)
        finally:
            trackers.close()
            writer.finish()


def _write_results(setup: Setup, batches: list[AuditBatch], writer: ResultWriter, bars: Bars, total: int) -> None:
    done = total - len(batches)
    bars.set("updates", done, total)
    for results in _results(setup, batches):
        for result in results:
            writer.write(result.job, result.outcome, result.scores, result.truth)
            if result.outcome.status == "failed":
                job = result.job
                console.print(f"{job.attack} failed on update {job.client}: {result.outcome.reason}", markup=False)
        done += 1
        bars.set("updates", done, total)
        if done % max(1, total // 10) == 0:
            bars.say(f"updates {done}/{total}")


def choose_pictures(setup: Setup) -> list[int]:
    """Positions in the training set of the pictures to audit.

    Raises:
        ConfigError: more are asked for than there are, or one that there is not.
    """
    audit, pictures = setup.config["audit"], setup.data.train
    if isinstance(audit["select"], list):
        return [_position(str(name), pictures) for name in audit["select"]]
    count = audit["num_images"]
    held = "test_fraction and data.auxiliary_fraction"
    if count > len(pictures):
        raise ConfigError("audit.num_images", count, f"at most {len(pictures)}: data.{held} keep the others back")
    if audit["select"] == "first":
        return sorted(range(len(pictures)), key=lambda position: pictures.ids[position])[:count]
    order = torch.randperm(len(pictures), generator=torch_generator(setup.config["seed"], "audit")).tolist()
    if audit["select"] == "random":
        return order[:count]
    turns: dict[int, int] = {}
    ranked = []
    for position in order:
        label = int(pictures.labels[position])
        turns[label] = turns.get(label, 0) + 1
        ranked.append((turns[label], position))
    return [position for _, position in sorted(ranked, key=lambda entry: entry[0])][:count]


def _position(name: str, pictures: ImageSet) -> int:
    if name not in pictures.ids:
        raise ConfigError("audit.select", name, f"the id of a training picture.{nearest(name, pictures.ids)}")
    return pictures.ids.index(name)


def open_or_resume(config: Config, root: Path) -> RunFolder:
    """A new run folder, or the one of an earlier call with the same settings.

    Raises:
        ConfigError: the folder holds a run with other settings.
    """
    recorded = root / "config.yaml"
    before = recorded.read_text(encoding="utf-8") if recorded.exists() else None
    if before is None and (root / "attacks.jsonl").exists():
        raise ConfigError("run_dir", root, "a new folder; this one holds results without their settings")
    return open_folder(config, root, expected=before)


def _unfinished(config: Config, chosen: list[int], writer: ResultWriter) -> Iterator[AuditBatch]:
    size = config["audit"]["batch_size"]
    for number, start in enumerate(range(0, len(chosen), size)):
        name = observation_name(0, number)
        attacks = tuple(attack for attack in config["attack"] if (name, attack) not in writer.done)
        if attacks:
            yield AuditBatch(number, tuple(chosen[start : start + size]), attacks)


def _results(setup: Setup, batches: list[AuditBatch]) -> Iterator[list[AuditResult]]:
    """Results of each batch as they arrive."""
    config, simulation = setup.config, setup.config["simulation"]
    probs = None
    if setup.wants_auxiliary and len(setup.data.auxiliary) and batches:
        with seeded_globals(config["seed"], "auxiliary", 0):
            probs = mean_softmax(setup.model, setup.data.auxiliary, setup.normaliser, config["client"]["training_mode"])
    if simulation["engine"] == "inline":
        worker = AuditWorker(config, auxiliary_probs=probs, setup=setup)
        for batch in batches:
            try:
                yield worker.run(batch)
            except Exception as error:  # noqa: BLE001 - defenses are plug-ins: on Ray their faults are results too
                logger.error("update %d:\n%s", batch.number, traceback.format_exc())
                yield _failed(batch, setup, f"{type(error).__name__}: {error}")
        return
    import ray

    from fedsim.simulation.actor_pool import ActorPool

    actor = ray.remote(AuditWorker).options(num_cpus=simulation["num_cpus"], num_gpus=simulation["num_gpus"])
    workers = worker_counts({**config, "attack": {}}, len(batches))[0] if batches else 0
    pool: ActorPool[AuditBatch] = ActorPool(
        lambda: actor.remote(config, simulation["num_gpus"], probs),
        workers,
        simulation["max_retries"],
    )
    for batch in batches:
        pool.submit(batch, partial(_run_on, batch))
    while pool.pending:
        # One update may take as long as its attacks may take together.
        limit = float(simulation["attack_timeout"]) * len(config["attack"])
        for end in pool.wait(1.0) + pool.expire(limit):
            yield _failed(end.tag, setup, end.error) if end.error is not None else end.value
    pool.close()


def _failed(batch: AuditBatch, setup: Setup, reason: str) -> list[AuditResult]:
    """An update that no worker could compute: named in the table, and the audit goes on."""
    pictures = setup.data.train.subset(batch.positions)
    nothing_seen = GroundTruth(torch.empty(0), pictures.labels, pictures.ids)
    jobs = [Job(0, batch.number, attack, len(pictures)) for attack in batch.attacks]
    return [AuditResult(job, Outcome("failed", reason), None, nothing_seen) for job in jobs]


def _run_on(batch: AuditBatch, worker: Any) -> Any:
    return worker.run.remote(batch)


def _attack_recorded(config: Config, root: Path, start: float) -> None:
    """Attack what a past run captured; there is no truth, so nothing is scored."""
    check_common(config)
    for name, settings in config["attack"].items():
        build_attack(name, settings)
    paths = list(find_observations(Path(config["observation"])))
    recorded = _as_recorded(config, _load(paths[0]))
    folder = open_or_resume(recorded, root)
    trackers = Trackers(config["tracker"], root)
    writer = make_writer(recorded, folder, trackers)
    with reported(folder, "audit", start), log_to(folder.log), Bars(console) as bars, engine(config, 1):
        scheduler = make_scheduler(config, writer.write)
        try:
            for path in paths:
                observation = _load(path)
                finished = frozenset(attack for name, attack in writer.done if name == path.name)
                scheduler.submit(observation, None, finished)
                bars.set("attacks", scheduler.finished, len(paths) * len(config["attack"]))
            scheduler.drain(lambda: bars.set("attacks", scheduler.finished, scheduler.submitted))
        finally:
            scheduler.close()
            trackers.close()
            writer.finish()


def _as_recorded(config: Config, observation: Observation) -> Config:
    """The settings that the report names, from the record instead of this call."""
    spec, size = observation.architecture.spec, observation.protocol.batch_size
    return {
        **config,
        "model": spec.to_dict(),
        "data": {"_target_": "recorded"},
        "defense": {settings["name"]: dict(settings) for settings in observation.defenses},
        "client": {**config["client"], "share": observation.update.kind, "batch_size": size},
        "audit": {**config["audit"], "batch_size": size},
    }


def find_observations(path: Path) -> Iterator[Path]:
    """The observation at `path`, or all in the folder.

    Raises:
        ConfigError: there are none.
    """
    if (path / "observation.json").is_file():
        yield path
        return
    found = sorted(child.parent for child in path.glob("*/observation.json"))
    if not found:
        raise ConfigError("observation", path, "there is none in this folder; RUN/observations holds those of a run")
    yield from found


def _load(path: Path) -> Observation:
    return load_observation(path, load_wrappers)
