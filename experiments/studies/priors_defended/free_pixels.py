"""Free pixels, as good as an attacker without a learned prior gets them: public pictures choose their settings."""

from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch

from attacks.running import run_attack
from experiments.engine.setup import prepare
from experiments.prior.inversion import Simulator
from experiments.prior.settings import prior_images
from experiments.studies.priors_defended.cases import Benchmark, DefendedCase
from experiments.studies.priors_defended.options import FREE
from fedsim.ground_truth import GroundTruth
from fedsim.metrics.accuracy import mean_softmax
from fedsim.metrics.score import score
from fedsim.observation import Observation
from fedsim.settings.composition import Config

WEIGHTS = (1e-3, 1e-2, 1e-1, 0.3)
OPTIMISERS = {
    "adam": {"optimiser": {"name": "adam"}, "schedule": {"kind": "cosine"}},
    "signed_adam": {"optimiser": {"name": "signed_adam"}, "schedule": {"kind": "step"}},
}
"""That of the generators' searches, and that of Inverting Gradients."""

TRIED = 2
"""Updates of public pictures that each setting is tried on."""


@dataclass(frozen=True)
class Setting:
    """A search of free pixels: an optimiser with its schedule, and the weight of total variation."""

    optimiser: str
    weight: float

    def __str__(self) -> str:
        return f"{self.optimiser}, {self.weight:g}"

    def applied(self, settings: Config) -> Config:
        """The attack's settings with this."""
        parts = {key: {**settings[key], **changed} for key, changed in OPTIMISERS[self.optimiser].items()}
        priors: dict[str, Any] = settings["priors"]
        smooth = {**priors["total_variation"], "weight": self.weight}
        return {**settings, **parts, "priors": {**priors, "total_variation": smooth}}


SETTINGS = tuple(Setting(optimiser, weight) for optimiser in OPTIMISERS for weight in WEIGHTS)


def best_setting(benchmark: Benchmark, case: DefendedCase, audit: Config, device: str) -> Setting:
    """The one that does best, in PSNR, on updates of public pictures behind the case's defense.

    The pictures are of classes that are not held out, and none that a prior was trained on.

    Args:
        audit: of the case; its settings of free pixels are those that are varied.
    """
    setup = prepare({**audit, "attack": {}})
    images = prior_images(prepare(benchmark.generator())).validation
    probs = mean_softmax(setup.model, setup.data.auxiliary, setup.normaliser, setup.config.client.training_mode)
    simulator = Simulator(setup)
    seen: list[tuple[Observation, GroundTruth]] = []
    for number in range(TRIED):
        chosen = images.subset(range(number * case.batch, (number + 1) * case.batch))
        observation = replace(simulator.observe(chosen, number), auxiliary_probs=probs)
        seen.append((observation, GroundTruth(chosen.images(range(case.batch)), chosen.labels, tuple(chosen.ids))))

    def quality(setting: Setting) -> float:
        settings = setting.applied(audit["attack"][FREE])
        return fmean(_psnr(settings, o, truth, audit["seed"], device) for o, truth in seen)

    return max(SETTINGS, key=quality)


def _psnr(settings: Config, observation: Observation, truth: GroundTruth, seed: int, device: str) -> float:
    """Mean over the pictures; 0 where the attack refuses, as it then does whatever the setting."""
    result = run_attack(observation, FREE, settings, seed, torch.device(device))
    return fmean(one.psnr or 0.0 for one in score(truth, result.images, None))
