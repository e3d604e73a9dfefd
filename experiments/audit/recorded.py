"""Attacks on what a federated run recorded: no data, no truth, and so no score."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from attacks.building import build_attack, check_fit
from defenses.compose import build_chain
from experiments.audit.failures import because, refuse_none
from experiments.cli.call import console, say_doing
from experiments.cli.logs import log_to
from experiments.cli.places import find_observations
from experiments.cli.progress import Bars
from experiments.cli.validation import check_gpus
from experiments.engine.choice import with_engine
from experiments.engine.content import attack_files, keep_content
from experiments.engine.folders import as_began, open_or_resume
from experiments.engine.reporting import reported
from experiments.engine.scratch import scratch_folder
from experiments.engine.setup import engine, load_recorded, make_scheduler, make_writer
from fedsim.errors import ConfigError
from fedsim.ground_truth import GroundTruth
from fedsim.observation import Observation
from fedsim.report.wording import count
from fedsim.result import AttackResult
from fedsim.settings.commands import AuditConfig
from fedsim.settings.local.augment import STAGE
from fedsim.storage.observation_files import recorded_digest
from fedsim.storage.run_folder import RunFolder
from fedsim.tracking import Trackers

RECORDED: Mapping[str, Callable[[Observation], Any]] = {
    "defenses": lambda one: one.defenses,
    "model settings": lambda one: one.architecture.spec,
    "fine-tuning": lambda one: one.finetune.to_record(),
    "kind of update": lambda one: one.update.kind,
}
"""What a report says once of all its updates."""


def attack_recorded(config: AuditConfig, place: str, root: Path, start: float) -> None:
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
    config = with_engine(as_began(config, root), count(len(paths), "observation"))
    recorded = _as_recorded(config, first)
    with RunFolder(root).locked():
        folder = open_or_resume(recorded, root)
        numbers = {f"numbers in {path.name}": recorded_digest(path) for path in paths}
        keep_content(folder, numbers | attack_files(config.attack))
        trackers = Trackers(config.tracker, root)
        writer = make_writer(recorded, folder, trackers)
        with (
            trackers,
            reported(folder, "audit", start, goes_on=bool(writer.done)),
            log_to(folder.log),
            Bars(console) as bars,
            scratch_folder(folder, bars, resumable=True) as scratch,
            engine(config, 1, folder=root),
        ):
            ended = bool(writer.done)

            def keep(result: AttackResult, truth: GroundTruth | None) -> None:
                writer.write(result, truth)
                if result.status == "failed":
                    told = f"{result.attack} failed on {result.observation}: {because(result, folder.log)}"
                    console.print(told, markup=False)

            scheduler = make_scheduler(config, keep, scratch)
            names, broke = frozenset(config.attack), writer.broke  # the latter come last, on all
            try:
                for skipped, path in product((broke, names - broke), paths):
                    if names <= skipped:
                        continue
                    observation = load_recorded(path)
                    finished = frozenset(attack for name, attack in writer.done if name == observation.name)
                    scheduler.submit(observation, None, finished | skipped)
                    bars.set("attacks", scheduler.finished, len(paths) * len(config.attack))
                scheduler.drain(lambda: bars.set("attacks", scheduler.finished, scheduler.submitted))
            finally:
                scheduler.close()
                writer.finish()
            refuse_none(writer, ended, folder.log)


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
        rates = list(dict.fromkeys(protocol.lrs))
        kept = ("momentum", "dampening", "nesterov", "betas", "eps", "weight_decay", "proximal_mu", "amsgrad")
        optimizer = {"_target_": protocol.optimizer, "lr": rates[0] if len(rates) == 1 else rates}
        optimizer |= {name: getattr(protocol, name) for name in kept}
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
