"""One training, or one attack; a process of its own may do it."""

import json
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fedsim
from attacks.optimization import Budget, GaussNewton, LevenbergMarquardt
from experiments.cli.logs import quiet_libraries
from experiments.matrix.units import quiet
from experiments.studies.harness.federation import run_folder, train
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Unit
from experiments.studies.harness.victims import finished
from fedsim.bounds.public_prior import PublicPrior
from fedsim.data import FederatedData, ImageFolder
from fedsim.determinism import torch_generator
from fedsim.models import Architecture, ModelSpec, architecture_seed
from fedsim.settings.composition import build_finetune
from fedsim.simulation.ray_cluster import quiet_environment
from fedsim.storage.durable import replacing

PUBLIC_IMAGES = 512
"""At most so many, whose mean and spectrum an attack knows."""
FLOAT = 4


def run_unit(unit: Unit) -> list[Entry]:
    """What `kind` among the unit's settings says: `pretraining`, `federation` or `attack`."""
    quiet_environment()
    quiet_libraries()
    with quiet():
        if unit.settings["kind"] == "attack":
            return [attacked(unit)]
        return [trained(unit)]


def trained(unit: Unit) -> Entry:
    """Accuracy after the last round, and the whole run's processor time by rounds, where one call did all of them."""
    config, folder = unit.settings["run"], run_folder(unit.out, unit.key.replace(" ", "_"))
    whole, before = not folder.exists(), time.process_time()
    train(config, folder)
    spent = time.process_time() - before
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    named = {name: unit.settings[name] for name in ("recipe", "rate", "seed") if name in unit.settings}
    entry: Entry = {**named, "accuracy": lines[-1]["accuracy"], "loss": lines[-1]["loss"]}
    if unit.settings["kind"] == "pretraining":
        _keep(folder / "checkpoints" / f"round-{config['num_rounds']:05d}.safetensors", unit)
        return entry
    prepared = _prepared(unit)
    numbers = sum(p.numel() for p in prepared.parameters() if p.requires_grad)
    return entry | {
        "numbers": numbers,
        "bytes": FLOAT * numbers,
        "cpu": spent / config["num_rounds"] if whole else None,
    }


def _keep(checkpoint: Path, unit: Unit) -> None:
    """The public model, whose classifier is drawn anew for classes that it has not seen."""
    state, rng = load_file(checkpoint), torch_generator(unit.settings["run"]["seed"], "classifier")
    shape = (unit.settings["classes"], state["head.weight"].shape[1])
    state["head.weight"] = 0.02 * torch.randn(*shape, generator=rng)  # as timm draws it
    state["head.bias"] = torch.zeros(shape[0])
    with replacing(Path(unit.settings["pretrained"])) as path:
        save_file(state, path)


def _prepared(unit: Unit) -> nn.Module:
    config = unit.settings["run"]
    spec = ModelSpec.from_dict({**config["model"], "num_classes": unit.settings["classes"]})
    recipe = build_finetune(config["finetune"])
    return Architecture(spec, (), architecture_seed(config["seed"]), recipe).build()


def attacked(unit: Unit) -> Entry:
    """One picture's gradient at the public model: a closed form where one applies, else second-order matching."""
    config, image = unit.settings["run"], unit.settings["image"]
    held = _pictures(config["data"]["path"], config["model"]["img_size"]).train
    images, labels = held.images([image]), held.labels[[image]]
    prior = _public(unit.settings["public"], config["model"]["img_size"])
    recipe = build_finetune(config["finetune"])
    seen = fedsim.observe(_prepared(unit).eval(), images, labels, finetune=recipe, seed=config["seed"])
    result = fedsim.attack("patch_gradient", seen)
    if result.status == "refused":
        search = LevenbergMarquardt(steps=unit.settings["steps"], restarts=1, starts=["mean"])
        attack = GaussNewton(search, budget=Budget(frames=0, save_every=0))
        result = fedsim.attack(attack, replace(seen, image_prior=prior), seed=config["seed"], device=unit.device)
    found = finished(result).images
    if found is None:
        return {"recipe": unit.settings["recipe"], "refused": result.reason}
    return {
        "recipe": unit.settings["recipe"],
        "attack": result.attack,
        "squared_error": float((found.double().cpu() - images.double()).square().mean()),
        "guess": float((images.double() - prior.mean).square().mean()),
        "certified": result.certified,
        "seconds": result.seconds,
    }


@cache
def _pictures(path: str, side: int) -> FederatedData:
    return FederatedData(ImageFolder(path, auxiliary_fraction=0.0, verify=False), None, side)


@cache
def _public(path: str, side: int) -> PublicPrior:
    held = _pictures(path, side).train
    return PublicPrior.of(held.images(list(range(min(PUBLIC_IMAGES, len(held))))))
