"""Running one attack on one observation, and scoring it: on whatever worker."""

import time
import traceback
from dataclasses import dataclass
from logging import getLogger
from typing import Any, Literal

import torch
from hydra.utils import instantiate

from attacks.base import Attack, NotApplicable, Reconstruction
from fedsim.determinism import torch_generator
from fedsim.errors import ConfigError
from fedsim.ground_truth import GroundTruth
from fedsim.metrics.score import ImageScore, LabelScore, score, score_labels
from fedsim.observation import Observation

logger = getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What became of an attack: `refused` carries its reason, `failed` the error."""

    status: Literal["done", "refused", "failed"]
    reason: str = ""
    reconstruction: Reconstruction | None = None
    seconds: float = 0.0


def build_attack(name: str, settings: dict[str, Any]) -> Attack:
    """Instantiate `cfg.attack.NAME`.

    Raises:
        ConfigError: its `_target_` is no Attack.
    """
    attack = instantiate(settings, _convert_="all")
    if not isinstance(attack, Attack):
        raise ConfigError(f"attack.{name}._target_", settings.get("_target_"), "a subclass of attacks.base.Attack")
    return attack


def attack_device(num_gpus: float) -> torch.device:
    return torch.device("cuda" if num_gpus > 0 else "cpu")


def run_attack(
    observation: Observation, name: str, settings: dict[str, Any], seed: int, device: torch.device
) -> Outcome:
    """Run one attack; a refusal is a result, and so is a fault in its code."""
    rng = torch_generator(seed, "attack", name, observation.server_round, observation.client)
    start = time.perf_counter()
    before = _versions(observation)
    try:
        reconstruction = build_attack(name, settings)(observation, rng, device)
        if _versions(observation) != before:
            raise RuntimeError("the attack wrote into the observation, which other attacks read too")
    except NotApplicable as refusal:
        return Outcome("refused", str(refusal), seconds=time.perf_counter() - start)
    except Exception as error:  # noqa: BLE001 - attacks are plug-ins: their faults belong into the report
        logger.error("attack %s failed:\n%s", name, traceback.format_exc())
        return Outcome("failed", f"{type(error).__name__}: {error}", seconds=time.perf_counter() - start)
    return Outcome("done", "", reconstruction, reconstruction.seconds)


@dataclass(frozen=True)
class Scores:
    """Scores per picture of the update, and of its labels as a whole."""

    images: list[ImageScore]
    labels: LabelScore | None


def _versions(observation: Observation) -> int:
    """torch counts the writes to each tensor: equal before and after means untouched."""
    tensors = [*observation.global_state.values(), *observation.update.tensors.values()]
    return sum(tensor._version for tensor in tensors)


def score_outcome(outcome: Outcome, truth: GroundTruth | None) -> tuple[Outcome, Scores | None]:
    """Compare with the truth, the only place that does; no scores without an audit record or a result.

    A result that cannot be compared (pictures of another shape) is a failed attack, not a failed run.
    """
    if truth is None or outcome.reconstruction is None:
        return outcome, None
    reconstruction = outcome.reconstruction
    try:
        images = score(truth, reconstruction.images, reconstruction.labels)
        return outcome, Scores(images, score_labels(truth, reconstruction.labels))
    except (ValueError, TypeError, RuntimeError) as error:
        reason = f"its result cannot be scored: {error}"
        return Outcome("failed", reason, seconds=outcome.seconds), None
