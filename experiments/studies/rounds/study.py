"""PSNR over the number of rounds, beside the reference whose information adds up. Its options are in `options`."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import fedsim
from attacks.optimization import Budget, GaussNewton, LevenbergMarquardt
from attacks.result import psnr_of
from defenses import GradientNoise
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Page, Study, Table, Unit
from experiments.studies.harness.tables import number
from experiments.studies.harness.victims import finished
from experiments.studies.rounds.options import arguments
from experiments.studies.second_order.references import linear
from experiments.studies.second_order.victims import SHAPE, digits, public
from fedsim.bounds.references import gaussian_reference, information, prior_precision
from fedsim.errors import ConfigError
from fedsim.models import Architecture, ModelSpec
from fedsim.observation import Observation

NOISE = 1e-2
"""Of the gradient's norm."""
ROUNDS = {"small": (1, 2, 5, 10), "paper": (1, 2, 5, 10, 20, 50, 100)}
IMAGES = {"small": 3, "paper": 10}
DRAWS = 40
"""From the posterior, each of which goes through all rounds."""
OTHERS = range(500, 1000)
"""Digits of the other clients."""
BATCH, STEPS, LR = 32, 5, 0.1
"""What the others train between two rounds."""


def run(options: argparse.Namespace) -> None:
    """From settings to the page.

    Raises:
        ConfigError: an option cannot work.
        RunError: a unit failed.
    """
    images = IMAGES[options.scale] if options.images is None else options.images
    if not 1 <= images <= OTHERS.start:
        raise ConfigError("--images", images, f"1 to {OTHERS.start}")
    rounds = sorted(set(options.rounds or ROUNDS[options.scale]))
    if rounds[0] < 1:
        raise ConfigError("--rounds", rounds[0], "1 or more")
    settings = {"seed": options.seed, "noise": NOISE}
    units = [
        Unit.of(options, f"{image}/{number}", {"image": image, "rounds": number, **settings})
        for image in range(images)
        for number in rounds
    ]
    shown = partial(page, rounds=rounds, images=images)
    Study(arguments(), [options.seed], settings, [units], work, shown).run(options)


def work(unit: Unit) -> list[Entry]:
    """One image after so many rounds; a process of its own may run it."""
    settings = unit.settings
    images, labels = digits([settings["image"]])
    seen = observed(images, labels, settings["rounds"], settings["seed"])
    attack = GaussNewton(LevenbergMarquardt(steps=30, restarts=1, draws=DRAWS), budget=Budget(frames=0, save_every=0))
    result = finished(fedsim.attack(attack, fedsim.History(tuple(seen)), seed=settings["seed"], device=unit.device))
    if result.images is None:
        return [{"rounds": settings["rounds"], "refused": result.reason}]
    entry: Entry = {
        "rounds": settings["rounds"],
        "squared_error": float((result.images.double().cpu() - images).square().mean()),
        "guess": float((images - public().mean).square().mean()),
        "seconds": result.seconds,
    }
    shared = (linear(one, images, labels, public()) for one in seen)
    told = torch.stack([information(jacobian, std) for jacobian, std, _ in shared]).sum(dim=0)
    for name, prior in (("white", public().white()), ("public", public())):
        entry[name] = 10 ** (-gaussian_reference([told], prior_precision(prior, SHAPE)) / 10)
    return [entry]


def observed(images: Tensor, labels: Tensor, rounds: int, seed: int) -> list[Observation]:
    """What the client shares in each round, the others having trained the model in between."""
    vit = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10), (), 0).build(keep=True)
    others, classes = digits(OTHERS)
    rng = torch.Generator().manual_seed(seed)
    found = []
    for server_round in range(1, rounds + 1):
        noise = GradientNoise(relative_norm=NOISE)
        one = fedsim.observe(vit, images.float(), labels, defense=[noise], seed=seed, server_round=server_round)
        found.append(replace(one, image_prior=public()))
        for _ in range(STEPS):
            chosen = torch.randint(len(others), (BATCH,), generator=rng)
            loss = F.cross_entropy(vit(one.normalised(others[chosen]).float()), classes[chosen])
            parameters = list(vit.parameters())
            with torch.no_grad():
                for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                    parameter.sub_(LR * gradient)
    return found


def page(entries: Sequence[Mapping[str, Any]], rounds: Sequence[int], images: int) -> Page:
    """One table: a row for each number of rounds."""
    rows, record = [], []
    for count in rounds:
        done = [entry for entry in entries if entry["rounds"] == count and "squared_error" in entry]
        means = {
            name: psnr_of(fmean(entry[name] for entry in done)) if done else None
            for name in ("squared_error", "white", "public", "guess")
        }
        seconds = fmean(entry["seconds"] for entry in done) if done else None
        record.append([count, len(done), *means.values(), seconds])
        shown = [number(value, ".1f") for value in means.values()]
        rows.append([str(count), str(len(done)), *shown, number(seconds, ".0f")])
    header = ["rounds", "images", "dB of the mean error", "white, image by image", "public, image by image"]
    header += ["a guess", "seconds"]
    names = ["rounds", "images", "floor", "white", "public", "guess", "seconds"]
    introduction = (
        f"`gauss_newton` on all rounds of one client together: one digit at `vit_nano`, noise of {NOISE:g} of the "
        f"norm on each gradient, {images} digits a row. The references, white and with the public spectrum, are what "
        "second moments alone could give of Gaussian images from the same rounds, image by image: no theorem on digits."
    )
    differs = [
        "The client trains on the same image in every round, and the server knows that it does.",
        f"Between two rounds others train the model: {STEPS} steps of SGD at {LR:g} on batches of {BATCH} digits.",
        "Labels are read off each round's update, and most rounds win.",
        "All digits of a row are one client's: in each round they have the same noise, and are no draws of their own.",
    ]
    table = Table("rounds", "What is left after so many rounds", header, rows, (names, record))
    return Page("rounds", "One client over many rounds", introduction, [table], differs)
