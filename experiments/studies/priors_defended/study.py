"""Do defenses stop LTI (Wu et al. 2023) and GGL (Li et al. 2022)? Their papers' defenses, by one command.

Its options are in `options`.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from attacks.running import run_attack
from experiments.engine.setup import prepare
from experiments.matrix.units import quiet
from experiments.prior.command import run_prior
from experiments.python.load_config import load_config
from experiments.studies.harness.client import Client
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Study, Unit, seeds
from experiments.studies.harness.victims import finished, presets
from experiments.studies.priors_defended.cases import FULL, SMALL, Benchmark, DefendedCase, chosen
from experiments.studies.priors_defended.free_pixels import SETTINGS, best_setting
from experiments.studies.priors_defended.judge import Judge, train_judge
from experiments.studies.priors_defended.options import ATTACKS, DEFENSES, FREE, GENERATORS, arguments
from experiments.studies.priors_defended.page import page
from fedsim.errors import ConfigError
from fedsim.ground_truth import GroundTruth
from fedsim.metrics.score import score
from fedsim.result import AttackResult
from fedsim.settings.composition import Config


@dataclass(frozen=True)
class PriorsScale:
    """How much is computed.

    Attributes:
        budgets: overrides for the generator, LTI's network and the attacks.
        batches: pictures of one update.
        pictures: attacked under each defense.
    """

    budgets: dict[str, list[str]]
    batches: tuple[int, ...]
    pictures: int
    seeds: int


SCALES = {"small": PriorsScale(SMALL, (1,), 8, 1), "paper": PriorsScale(FULL, (1, 4), 100, 3)}


def run(options: argparse.Namespace) -> None:
    """Train the priors, attack, write the page."""
    scale = SCALES[options.scale]
    used = seeds(options, scale.seeds)
    first, rest = plan(options, scale, used)
    benchmark: Benchmark = first[0].settings["benchmark"]
    chosen(benchmark, benchmark.generator())  # unknown classes are refused before anything is trained
    settings = {
        "budgets": scale.budgets,
        "images": scale.pictures,
        "pictures": str(options.pictures.resolve()),
        "held": benchmark.held,
        "model": options.model,
        "threads": options.threads,
        "defenses": DEFENSES,
        "attacks": presets(*benchmark.attacks),
        "free pixels": [str(setting) for setting in SETTINGS],
        "priors": load_config("prior")["prior"],
    }
    shown = partial(page, held=benchmark.held, out=options.out, budget=budget(scale, options.model))
    Study(arguments(), used, settings, [first, rest], work, shown).run(options)


def budget(scale: PriorsScale, model: str) -> list[str]:
    """What differs from the papers in size, a sentence for each."""
    lti = load_config("prior", *scale.budgets["lti"])["prior"]["lti"]
    ggl = load_config(
        "audit", "attack=[ggl]", *(line for line in scale.budgets["attack"] if line.startswith("attack.ggl."))
    )["attack"]["ggl"]
    bins = "all their numbers" if lti["bins"] is None else f"{lti['bins']:,} numbers"
    return [
        f"LTI: a network of {lti['hidden']:,} hidden units on {lti['updates']:,} simulated updates hashed to {bins} "
        "(the paper: 3,000 hidden units, CIFAR-10's whole training set as public data).",
        "GGL: the generator is a small decoder trained here on public pictures (the paper: BigGAN at 224 px and a "
        f"DCGAN of faces), {ggl['generations']} generations of {ggl['population']} with a {ggl['covariance']} "
        "covariance.",
        f"The clients' network is {model} for both; LTI's paper has LeNet, GGL's a ResNet-18.",
    ]


def plan(options: argparse.Namespace, scale: PriorsScale, used: list[int]) -> tuple[list[Unit], list[Unit]]:
    """What is trained, and the attacks that need it; each seed has a folder of its own.

    Raises:
        ConfigError: an update would hold fewer pictures than others.
    """
    batches = options.batches or scale.batches
    for batch in batches:
        if batch < 1 or scale.pictures % batch:
            raise ConfigError("--batches", batch, f"divisors of {scale.pictures}, the pictures of the scale")
    cases = tuple(DefendedCase(batch, defense) for batch in batches for defense in options.defenses)
    attacks = (*ATTACKS, *(GENERATORS if options.generators else ()))
    held = tuple(options.held.split(","))
    first, rest = [], []
    for seed in used:
        benchmark = Benchmark(
            options.pictures,
            options.out / f"seed-{seed}",
            held,
            attacks,
            options.model,
            scale.pictures,
            scale.budgets,
            seed,
            options.threads,
        )

        def unit(key: str, kind: str, case: DefendedCase | None = None, benchmark: Benchmark = benchmark) -> Unit:
            settings = {"kind": kind, "benchmark": benchmark, "case": case}
            return Unit.of(options, f"{key}/seed {benchmark.seed}", settings)

        first += [unit("generator", "generator"), unit("judge", "judge")]
        first += [unit(f"lti/{case.name}", "lti", case) for case in cases]
        rest += [unit(f"attacks/{case.name}", "attacks", case) for case in cases]
    return sorted(first, key=_shorter), rest


def _shorter(unit: Unit) -> bool:
    """What takes longest comes first, or one worker ends alone: Soteria costs a backward pass for each feature."""
    case: DefendedCase | None = unit.settings["case"]
    return case is None or case.defense != "soteria"


def work(unit: Unit) -> list[Entry]:
    """The entries of a unit; a process of its own may run it."""
    benchmark: Benchmark = unit.settings["benchmark"]
    kind, case = unit.settings["kind"], unit.settings["case"]
    if kind == "attacks":
        return [{"kind": kind, "seed": benchmark.seed, **entry} for entry in attacks(benchmark, case, unit.device)]
    if kind == "judge":
        _judge(benchmark)
        return [{"kind": kind, "seed": benchmark.seed}]
    config = benchmark.generator() if kind == "generator" else benchmark.lti(case)
    config["client"]["device"] = unit.device
    folder = Path(config["run_dir"])
    with quiet():
        run_prior(config, folder)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return [{**summary, "kind": kind, "seed": benchmark.seed, "defense": None if case is None else case.defense}]


def attacks(benchmark: Benchmark, case: DefendedCase, device: str) -> Iterator[Entry]:
    """One entry for each picture and attack."""
    config = configuration(benchmark, case, device)
    judge, client = _judge(benchmark), Client(config)
    positions = [client.setup.data.train.ids.index(name) for name in config["audit"]["select"]]
    setting = best_setting(benchmark, case, config, device)
    config["attack"][FREE] = setting.applied(config["attack"][FREE])
    for number, start in enumerate(range(0, len(positions) - case.batch + 1, case.batch)):
        observation, truth, _ = client.shares(positions[start : start + case.batch], number)
        for attack, settings in config["attack"].items():
            result = finished(run_attack(observation, attack, settings, config["seed"], torch.device(device)))
            known: Entry = {"defense": case.defense, "batch_size": case.batch, "attack": attack, "number": number}
            known |= {
                "setting": str(setting) if attack == FREE else None,
                "status": result.status,
                "reason": result.reason,
                "seconds": result.seconds,
            }
            for scored in _scored(result, truth, judge):
                yield {**known, **scored}


def configuration(benchmark: Benchmark, case: DefendedCase, device: str) -> Config:
    """Settings of the audit."""
    config = benchmark.audit(case, chosen(benchmark, benchmark.generator()))
    config["client"]["device"] = device
    return config


def _scored(result: AttackResult, truth: GroundTruth, judge: Judge) -> Iterator[Entry]:
    """For each picture; of a refused attack too, without scores."""
    found = score(truth, result.images, None)
    for place, one in enumerate(found):
        entry: Entry = {"image": one.image, "psnr": one.psnr, "ssim": one.ssim, "lpips": one.lpips, "feature": None}
        if result.images is not None and one.reconstruction is not None:
            image = result.images[one.reconstruction][None].float().cpu().clamp(0, 1)
            entry["feature"] = float(judge.between(image, truth.images[place][None].float().cpu())[0])
        yield entry


def _judge(benchmark: Benchmark) -> Judge:
    """Trained once; later calls read it."""
    config: dict[str, Any] = benchmark.generator()
    return train_judge(prepare(config), benchmark.held, benchmark.out)
