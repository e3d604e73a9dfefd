"""What studies of searches share: settings of an audit, batches by their labels, an attack on one, its scores."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from attacks.running import run_attack
from experiments.python.load_config import load_config
from experiments.studies.harness.client import Client
from experiments.studies.harness.ledger import Entry
from fedsim.errors import RunError
from fedsim.ground_truth import GroundTruth
from fedsim.metrics.score import score, score_labels
from fedsim.observation import Observation
from fedsim.result import AttackResult
from fedsim.settings.composition import Config

MEASURES = ("psnr", "ssim", "fft2d", "lpips")
PUBLIC = 0.5
"""Share of the training pictures that no client holds."""


def audit(pictures: Path, seed: int, device: str, *overrides: str) -> Config:
    """Settings of an audit of clients with pictures of a folder, half of which are public."""
    fixed = ["simulation=inline", "tracker=[]", "data=imagefolder", "data.verify=false"]
    chosen = [f"data.auxiliary_fraction={PUBLIC}", f"seed={seed}", f"client.device={device}"]
    return load_config("audit", *fixed, *chosen, *overrides, data={"path": str(pictures)})


def presets(*names: str) -> Config:
    """The settings of attacks as their files have them."""
    attacks: Config = load_config("audit", f"attack=[{','.join(names)}]")["attack"]
    return attacks


def draw_batch(labels: Int[Tensor, "pictures"], groups: Sequence[int], rng: torch.Generator) -> list[int] | None:
    """Positions of pictures, so many of one class as each entry of `groups` says; None where there are not so many.

    Classes are drawn one after the other, so that a batch of more classes begins like one of fewer.
    """
    order = torch.randperm(len(labels), generator=rng).tolist()
    by_class: dict[int, list[int]] = {}
    for position in order:
        by_class.setdefault(int(labels[position]), []).append(position)
    chosen: list[int] = []
    for size in sorted(groups, reverse=True):
        label = next((label for label, held in by_class.items() if len(held) >= size), None)
        if label is None:
            return None
        chosen += by_class.pop(label)[:size]
    return chosen


def attack_batch(
    observation: Observation, truth: GroundTruth, name: str, settings: Mapping[str, Any], seed: int, device: str
) -> tuple[Entry, AttackResult]:
    """Run one attack: its status, its certificate and the batch's mean scores.

    A refusal is a result, with its reason.

    Raises:
        RunError: the attack failed; what it has not done is no result.
    """
    result = finished(run_attack(observation, name, dict(settings), seed, torch.device(device)))
    entry: Entry = {"status": result.status, "reason": result.reason, "seconds": result.seconds}
    if result.status != "done":
        return entry, result
    certificate = result.certificate
    entry |= {"certificate": certificate.status, "reason": certificate.reason or result.reason}
    return entry | scores(truth, result.images, result.labels), result


def finished(result: AttackResult) -> AttackResult:
    """The result of an attack that was not stopped by a fault, such as a full memory.

    Raises:
        RunError: it failed.
    """
    if result.status == "failed":
        raise RunError(f"{result.attack}: {result.reason}; the same command tries it again")
    return result


def scores(truth: GroundTruth, images: Tensor | None, labels: Tensor | None = None) -> Entry:
    """Mean over the batch's pictures of each measure, missing where there is none; how many were rebuilt; labels."""
    result: Entry = {}
    if images is not None:
        single = score(truth, images, labels)
        for name in MEASURES:
            values = [value for one in single if (value := getattr(one, name)) is not None]
            if values:
                result[name] = sum(values) / len(values)
        result["psnrs"] = [one.psnr for one in single]
    named = score_labels(truth, labels)
    if named is not None:
        result |= {"labels": named.share, "labels_exact": named.exact}
    return result


def guess(client: Client, truth: GroundTruth) -> Entry:
    """The scores of the mean public picture, what can be guessed without a gradient."""
    image = client.setup.guess()
    images = image.expand(len(truth.labels), -1, -1, -1)
    return {"status": "done", "reason": "", "seconds": 0.0, **scores(truth, images)}
