"""GradInversion (Yin et al. 2021): which labels a batch's gradient tells, and what each prior adds, by one command.

Its options are in `options`.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save

from experiments.benchmarks.label_rules import measure
from experiments.engine.setup import prepare
from experiments.prior.settings import held_by_no_client
from experiments.studies.gradinversion.labels import known_features
from experiments.studies.gradinversion.options import arguments
from experiments.studies.gradinversion.page import (
    ARMS,
    FIDELITY,
    GRADIENT,
    GUESS,
    KINDS,
    LAZY,
    RANDOM,
    REGISTERED,
    RULES_SHOWN,
    SMOOTH,
    STATES,
    page,
)
from experiments.studies.harness.client import Client
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Study, Unit, seeds
from experiments.studies.harness.victims import attack_batch, audit, draw_batch, guess, presets
from experiments.studies.harness.weights import class_count
from fedsim.determinism import seeded_globals, torch_generator
from fedsim.errors import ConfigError
from fedsim.metrics.accuracy import evaluate
from fedsim.models import Normaliser
from fedsim.settings.composition import Config
from fedsim.storage.digests import file_sha256
from fedsim.storage.durable import write_whole

ATTACK = "gradinversion"


@dataclass(frozen=True)
class GradInversionScale:
    """How much is computed.

    Attributes:
        model: overrides that choose the network.
        training: steps on public pictures in batches of 32; 0: weights must be given.
        states: of the network whose labels are read.
        sizes: batch sizes of the label tables; `batches` of each for a seed.
        pictures: clients' pictures that the label batches are drawn from.
        batch: pictures of one update in the ablation.
        search: settings of the attack that differ from its file's.
        group_every: steps after which the group's mean is computed anew.
    """

    model: tuple[str, ...]
    training: int
    states: tuple[str, ...]
    sizes: tuple[int, ...]
    batches: int
    pictures: int
    seeds: int
    batch: int
    search: Mapping[str, Any]
    warmup: int
    group_every: int


SCALES = {
    "small": GradInversionScale(
        model=("model=resnet18_32", "+model.kwargs.channels=[16,32,64,128]", "+model.kwargs.layers=[1,1,1,1]"),
        training=300,
        states=tuple(STATES),
        sizes=(1, 2, 4, 8, 16, 32, 64),
        batches=20,
        pictures=720,
        seeds=3,
        batch=4,
        search={
            "steps": 600,
            "restarts": 3,
            "objective._target_": "attacks.optimization.Cosine",
            "priors.total_variation.weight": 0.1,
            "priors.batch_norm.weight": 3e-4,
            "optimiser.langevin": 0,
        },
        warmup=10,
        group_every=10,
    ),
    "paper": GradInversionScale(
        model=("model=resnet18_32", "model.name=resnet50"),
        training=0,
        states=("trained",),
        sizes=(1, 2, 4, 8, 16, 32, 64),
        batches=100,
        pictures=10_000,
        seeds=10,
        batch=8,
        search={},
        warmup=50,
        group_every=100,
    ),
}


def run(options: argparse.Namespace) -> None:
    """Train the network where it must be, then labels and ablation, then the page."""
    scale = SCALES[options.scale]
    if scale.training == 0 and options.checkpoint is None:
        raise ConfigError("--checkpoint", None, f"trained weights, at --scale {options.scale}")
    if options.checkpoint is not None and not options.checkpoint.is_file():
        raise ConfigError("--checkpoint", options.checkpoint, fault="there is no such file")
    chosen = seeds(options, scale.seeds)
    settings = {
        "scale": asdict(replace(scale, seeds=0)),
        "seed": options.seed,
        "pictures": str(options.pictures.resolve()),
        "checkpoint": None if options.checkpoint is None else file_sha256(options.checkpoint),
        "attacks": presets(ATTACK),
    }
    shown = partial(page, batch=scale.batch, out=options.out, budget=budget(scale))
    Study(arguments(), chosen, settings, plan(options, scale, chosen), work, shown).run(options)


def budget(scale: GradInversionScale) -> str:
    """What differs from the paper in size, in a sentence."""
    preset = presets(ATTACK)[ATTACK]
    search = {**preset, **scale.search}
    trained = f"trained for {scale.training} steps on the public pictures" if scale.training else "trained elsewhere"
    changed = {name: value for name, value in scale.search.items() if "." in name}
    if scale.warmup != preset["schedule"]["warmup"]:
        changed["schedule.warmup"] = scale.warmup
    if scale.group_every != preset["group"]["every"]:
        changed["group.every"] = scale.group_every
    own = ", ".join(f"{name}={value}" for name, value in changed.items())
    other = f" For so few steps the search has settings of its own ({own}); the paper matches by layer-wise L2."
    other = other if own else ""
    return (
        f"Network, pictures and budget: {' '.join(scale.model)}, {trained}, {search['restarts']} candidates and "
        f"{search['steps']:,} steps of search, batches of {scale.batch}; the paper has a trained ResNet-50, 224 px, 8 "
        f"candidates, 20,000 steps, batches of 8.{other}"
    )


def plan(options: argparse.Namespace, scale: GradInversionScale, chosen: list[int]) -> tuple[list[Unit], list[Unit]]:
    """The training, where there is one, and what needs its weights."""
    checkpoint = options.checkpoint or options.out / "model.safetensors"
    common: dict[str, Any] = {
        "scale": scale,
        "pictures": options.pictures,
        "checkpoint": checkpoint,
        "split": options.seed,
    }

    def unit(key: str, kind: str, **settings: Any) -> Unit:
        return Unit.of(options, key, {**common, "kind": kind, **settings})

    training = [] if options.checkpoint is not None else [unit("training", "training")]
    ablation = [unit(f"ablation/{arm}/seed {seed}", "ablation", arm=arm, seed=seed) for seed in chosen for arm in ARMS]
    labels = [
        unit(f"labels/{state}/{kind}/seed {seed}", "labels", state=state, labels=kind, seed=seed)
        for seed in chosen
        for state in scale.states
        for kind in KINDS
    ]
    return training, ablation + labels


def work(unit: Unit) -> list[Entry]:
    """The entries of a unit; a process of its own may run it."""
    kinds: dict[str, Callable[[Unit], list[Entry]]] = {"training": train, "labels": read_labels, "ablation": ablate}
    return [{"kind": unit.settings["kind"], **entry} for entry in kinds[unit.settings["kind"]](unit)]


def configuration(unit: Unit) -> Config:
    """Settings of audits of the ablation's batches; BatchNorm in evaluation mode, labels by the paper's rule."""
    scale: GradInversionScale = unit.settings["scale"]
    batch = [f"audit.batch_size={scale.batch}", f"attack=[{ATTACK}]", "client.training_mode=false"]
    search = [f"attack.{ATTACK}.{name}={value}" for name, value in scale.search.items()]
    schedule = [
        f"attack.{ATTACK}.schedule.warmup={scale.warmup}",
        f"attack.{ATTACK}.group.every={scale.group_every}",
        f"attack.{ATTACK}.frames=0",
    ]
    overrides = [*scale.model, *batch, *search, *schedule]
    config = audit(unit.settings["pictures"], unit.settings["split"], unit.device, *overrides)
    checkpoint: Path = unit.settings["checkpoint"]
    if unit.settings["kind"] != "training":
        config["model"]["num_classes"] = class_count(checkpoint, "fc.bias")
    return config


def train(unit: Unit) -> list[Entry]:
    """SGD with momentum on the public pictures; the weights go to `checkpoint`."""
    scale: GradInversionScale = unit.settings["scale"]
    setup = prepare(configuration(unit))
    model, public, seed = setup.model.to(unit.device).train(), held_by_no_client(setup.data), unit.settings["split"]
    normalise = Normaliser(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, scale.training)
    with seeded_globals(seed, "gradinversion-training"):
        for step in range(scale.training):
            rng = torch_generator(seed, "gradinversion-training", step)
            chosen = torch.randint(len(public), (32,), generator=rng)
            loss = F.cross_entropy(model(normalise(public.images(chosen))), public.labels[chosen].to(unit.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    state = {name: tensor.cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_whole(unit.settings["checkpoint"], save(state))
    accuracy = evaluate(model, setup.data.test, normalise).accuracy if len(setup.data.test) else None
    return [{"accuracy": accuracy, "steps": scale.training}]


def read_labels(unit: Unit) -> list[Entry]:
    """One entry for each rule and batch size."""
    settings = unit.settings
    scale: GradInversionScale = settings["scale"]
    client = Client(configuration(unit), settings["checkpoint"] if settings["state"] == "trained" else None)
    known = known_features(client.setup, scale.pictures, settings["split"], unit.device)
    rng = torch_generator(settings["seed"], "gradinversion-labels", settings["labels"])
    measured = measure(known, settings["labels"], scale.sizes, scale.batches, rng, RULES_SHOWN)
    own = {name: settings[name] for name in ("state", "labels", "seed")}
    return [{**own, **row, "share": row["overlap"]} for row in measured]


def ablate(unit: Unit) -> list[Entry]:
    """The mean scores of one batch under one arm; none where the pictures have too few classes."""
    settings = unit.settings
    scale, arm, seed = settings["scale"], settings["arm"], settings["seed"]
    config = configuration(unit)
    client = Client(config, settings["checkpoint"])
    rng = torch_generator(seed, "gradinversion-batch")
    positions = draw_batch(client.setup.data.train.labels, [1] * scale.batch, rng)
    if positions is None:
        raise ConfigError("--pictures", settings["pictures"], f"at least {scale.batch} classes")
    observation, truth, _ = client.shares(positions, seed)
    if arm == GUESS:
        found = guess(client, truth)
    else:
        found, _ = attack_batch(observation, truth, ATTACK, of_arm(arm, config["attack"][ATTACK]), seed, unit.device)
    return [{"arm": arm, "seed": seed, **found}]


def of_arm(arm: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The attack's settings less what an arm leaves out; the seeds and their draws stay the same."""
    changes: dict[str, dict[str, Any]] = {
        GRADIENT: {"priors": {}, "group": None},
        SMOOTH: {"priors": {**settings["priors"], "batch_norm": None}, "group": None},
        FIDELITY: {"group": None},
        LAZY: {"group": {**settings["group"], "register": False}},
        REGISTERED: {"group": {**settings["group"], "register": True}},
        RANDOM: {"target": "random"},
    }
    return {**settings, **changes[arm]}
