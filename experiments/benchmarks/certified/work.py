"""Computes a cell: each batch is shared, each attack is run on it, each certificate is judged."""

import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from attacks.running import run_attack
from experiments.benchmarks.certified.cells import CertifiedCell
from experiments.benchmarks.certified.client import StatedClient
from experiments.benchmarks.certified.images import draw, pool
from experiments.benchmarks.certified.judging import judge
from experiments.benchmarks.certified.models import model_config, train, trained
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Unit
from fedsim.determinism import torch_generator
from fedsim.errors import ConfigError
from fedsim.ground_truth import GroundTruth
from fedsim.observation import Observation
from fedsim.settings.options import option
from fedsim.update import State
from fedsim.wire.reply.values import MalformedReply

LARGEST = 8


def compute(unit: Unit) -> list[Entry]:
    """The entries of one unit: a model to train, or a cell."""
    settings, states = unit.settings, unit.out / "states"
    images = None if settings["pictures"] is None else Path(settings["pictures"])
    if "train" in settings:
        model = settings["train"]
        config = model_config(model)
        return train(model, pool(images, config["img_size"], config["num_classes"]), states)
    return list(certificates(settings["cell"], images, states))


def certificates(
    cell: CertifiedCell, pictures: Path | None, states: Path, configs: Mapping[str, dict[str, Any]] | None = None
) -> Iterator[Entry]:
    """An entry for each attack on each batch; a single one where the cell's parts do not go together.

    Args:
        configs: of attacks that are not in `conf/attack`, by name.
    """
    config = model_config(cell.model)
    held = pool(pictures, config["img_size"], config["num_classes"])
    try:
        weights = _weights(cell.model, cell.state, pictures, states)
        client = StatedClient(cell.model, weights, cell.defense, cell.protocol, LARGEST, held)
    except ConfigError as error:
        yield {"status": "invalid", "reason": str(error)}
        return
    for place, (kind, size) in enumerate(cell.batches):
        rng = torch_generator(0, "batch", cell.key, place)
        images = draw(held.images, held.labels, config["num_classes"], kind, size, rng)
        batch = {"kind": kind, "size": size}
        start = time.perf_counter()
        try:
            observation, truth = client.shares(images, 1000 * cell.number + place)
        except (ConfigError, MalformedReply) as error:
            yield {**batch, "status": "invalid", "reason": str(error)}
            continue
        shared = time.perf_counter() - start
        for attack in cell.attacks:
            settings = option("attack", attack) if configs is None else configs[attack]
            yield {**batch, "shared": round(shared, 4), **attacked(observation, truth, attack, settings)}


def attacked(observation: Observation, truth: GroundTruth, attack: str, settings: dict[str, Any]) -> Entry:
    """What became of one attack, and of its certificate."""
    result = run_attack(observation, attack, settings, 0, torch.device("cpu"))
    entry: Entry = {"attack": attack, "status": result.status, "seconds": round(result.seconds, 4)}
    if result.status != "done":
        return {**entry, "reason": result.reason}
    certificate = result.certificate
    entry["certificate"] = certificate.status
    if not certificate.certified:
        return {**entry, "reason": certificate.reason}
    judgement = judge(result, truth)
    entry |= {"promised": judgement.promised, "true": judgement.true, "margin": judgement.margin}
    entry |= {"fault": judgement.fault, "label_fault": judgement.label_fault}
    return entry | ({"reason": certificate.reason} if judgement.fault or judgement.label_fault else {})


@lru_cache(maxsize=16)
def _weights(model: str, state: str, images: Path | None, states: Path) -> State:
    config = model_config(model)
    return trained(model, state, pool(images, config["img_size"], config["num_classes"]), states)
