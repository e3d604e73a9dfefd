"""Gradient inversion seen by its prior knowledge (a blog post): an MLP's gradient without any prior, by one command.

Its options are in `options`.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from experiments.studies.harness.client import Client
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Study, Unit, seeds
from experiments.studies.harness.victims import attack_batch, audit, draw_batch, guess, presets
from experiments.studies.prior_knowledge.options import arguments
from experiments.studies.prior_knowledge.page import (
    CERTIFYING,
    CLOSED,
    COSINE,
    FEATURES,
    FIRST_BLOCK,
    GUESS,
    LABELS,
    MATCHING,
    RANDOM,
    RGAP,
    ROW_SPACE,
    SHARING,
    SQUARED,
    page,
)
from fedsim.determinism import torch_generator
from fedsim.errors import ConfigError
from fedsim.ground_truth import GroundTruth
from fedsim.metrics.image import psnr
from fedsim.observation import Observation
from fedsim.result import AttackResult
from fedsim.settings.composition import Config

PRESETS = {
    COSINE: "inverting_gradients",
    CLOSED: "fc_bias",
    RGAP: "rgap",
    LABELS: "labels_certified",
    FEATURES: "feature_target",
    ROW_SPACE: "row_space_batch",
    FIRST_BLOCK: "first_block",
}


@dataclass(frozen=True)
class KnowledgeScale:
    """How much is computed.

    Attributes:
        mlp, vit: overrides that choose the networks.
        sizes: batch sizes of the information loss.
        steps: of a search.
        frames: pictures kept of its way.
    """

    mlp: tuple[str, ...]
    vit: tuple[str, ...]
    sizes: tuple[int, ...]
    steps: int
    frames: int
    seeds: int


VIT = ("model=vit_tiny", "model.img_size=32", "model.patch_size=8", "+model.kwargs.depth=2")
SCALES = {
    "small": KnowledgeScale(("model=mlp", "model.kwargs.hidden=[512,256,128]"), VIT, (1, 2, 4, 8, 16), 400, 25, 4),
    "paper": KnowledgeScale(
        ("model=mlp", "model.img_size=64", "model.kwargs.hidden=[1024,512,256]"),
        VIT,
        (1, 2, 4, 8, 16, 32, 64),
        10_000,
        100,
        20,
    ),
}


def run(options: argparse.Namespace) -> None:
    """From settings to the page."""
    scale = SCALES[options.scale]
    chosen = seeds(options, scale.seeds)
    settings = {
        "scale": asdict(replace(scale, seeds=0)),
        "pictures": str(options.pictures.resolve()),
        "attacks": presets(*PRESETS.values()),
    }
    shown = partial(page, out=options.out, budget=budget(scale))
    Study(arguments(), chosen, settings, [plan(options, scale, chosen)], work, shown).run(options)


def budget(scale: KnowledgeScale) -> str:
    """What differs from the post in pictures, network and steps, in a sentence."""
    return (
        "Pictures and network: the post takes Flowers-17; its widths, picture size and optimiser were not available. "
        f"Here: the given folder's pictures, {' '.join(scale.mlp)}, Adam at 0.1 with a cosine schedule and "
        f"{scale.steps:,} steps for both distances."
    )


def plan(options: argparse.Namespace, scale: KnowledgeScale, chosen: list[int]) -> list[Unit]:
    """A unit for each batch: all methods attack the same."""
    units = []
    for seed in chosen:
        common = {"scale": scale, "pictures": options.pictures, "seed": seed}
        batches: list[tuple[str, dict[str, Any]]]
        batches = [(f"mlp/B = {size}", {"size": size, "sharing": None}) for size in scale.sizes]
        batches += [(name, {"size": None, "sharing": name}) for name in SHARING]
        units += [Unit.of(options, f"{name}/seed {seed}", {**common, **own}) for name, own in batches]
    return units


def work(unit: Unit) -> list[Entry]:
    """One entry for each method; a process of its own may run it."""
    settings = unit.settings
    scale, seed, sharing = settings["scale"], settings["seed"], settings["sharing"]
    network = scale.vit if sharing is not None and SHARING[sharing].on_vit else scale.mlp
    size = settings["size"] or sum(SHARING[sharing].groups)
    overrides = [*network, f"audit.batch_size={size}", f"attack=[{','.join(PRESETS.values())}]"]
    config = audit(settings["pictures"], seed, unit.device, *overrides)
    client = Client(config)
    setup = client.setup
    groups = evenly(size, setup.data.num_classes) if sharing is None else SHARING[sharing].groups
    positions = draw_batch(setup.data.train.labels, groups, torch_generator(seed, "prior-knowledge-batch"))
    if positions is None:
        raise ConfigError("--pictures", settings["pictures"], f"more pictures: batches of classes with {groups}")
    observation, truth, _ = client.shares(positions, seed)
    assert len(truth.labels) == size
    known = {"sharing": sharing, "batch_size": size, "seed": seed}
    return [{**known, **entry} for entry in results(unit, config, client, observation, truth)]


def results(
    unit: Unit, config: Config, client: Client, observation: Observation, truth: GroundTruth
) -> Iterator[Entry]:
    """What each method makes of one batch."""
    sharing, seed = unit.settings["sharing"], unit.settings["seed"]
    methods = MATCHING if sharing is None else CERTIFYING[SHARING[sharing].on_vit]
    for method in methods:
        if method == GUESS:
            yield {"method": method, **guess(client, truth)}
            continue
        settings = of_method(method, config["attack"], unit.settings["scale"])
        entry, result = attack_batch(observation, truth, "prior_knowledge", settings, seed, unit.device)
        yield {"method": method, **entry, **_certified(result), "curve": _curve(result, truth)}


def of_method(method: str, attacks: Mapping[str, Any], scale: KnowledgeScale) -> dict[str, Any]:
    """A method's settings: every search has the same optimiser, no box and no prior, but for what its name says."""
    if method not in (SQUARED, COSINE, RANDOM, FEATURES, ROW_SPACE):
        return dict(attacks[PRESETS[method]])
    plain, distance = attacks[PRESETS[COSINE]], "SquaredL2" if method == SQUARED else "Cosine"
    settings: dict[str, Any] = {
        **plain,
        "objective": {"_target_": f"attacks.optimization.{distance}"},
        "parametrisation": {**plain["parametrisation"], "boxed": False},
        "priors": {},
        "optimiser": {**plain["optimiser"], "name": "adam"},
        "schedule": {**plain["schedule"], "kind": "cosine"},
        "steps": scale.steps,
        "frames": scale.frames,
        "target": "random" if method == RANDOM else "observed",
    }
    if method == ROW_SPACE:
        settings["parametrisation"] = attacks[PRESETS[ROW_SPACE]]["parametrisation"]
    if method == FEATURES:
        settings["priors"] = {"features": attacks[PRESETS[FEATURES]]["priors"]["features"]}
    return settings


def evenly(size: int, classes: int) -> list[int]:
    """How many pictures each label has, in batches that repeat labels no more than they must."""
    labels = min(size, classes)
    return [size // labels + (place < size % labels) for place in range(labels)]


def _certified(result: AttackResult) -> Entry:
    """How many images the certificate is about: all that were rebuilt, or none."""
    if result.images is None:
        return {}
    return {"pictures_certified": len(result.images) if result.certified else 0}


def _curve(result: AttackResult, truth: GroundTruth) -> list[list[float]]:
    """[step, PSNR] of one picture on the way; in a batch nobody knows which is which."""
    if len(truth.labels) > 1:
        return []
    return [[frame.step, float(psnr(frame.images.clamp(0, 1), truth.images.cpu())[0])] for frame in result.frames]
