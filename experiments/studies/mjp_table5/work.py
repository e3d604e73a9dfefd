"""What one worker does for MJP's Table 5: takes clients' gradients, attacks them and scores the pictures."""

import gc
from collections.abc import Mapping
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.running import run_attack
from defenses.mjp import MaskedJigsawPuzzle
from experiments.studies.harness.client import Client
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Unit
from experiments.studies.harness.victims import finished
from experiments.studies.mjp_table5.attacks import visible_mask
from experiments.studies.mjp_table5.rows import GREY, MEAN
from fedsim.data import ImageSet
from fedsim.determinism import torch_generator
from fedsim.ground_truth import GroundTruth
from fedsim.metrics.records import ImageScore
from fedsim.metrics.score import score
from fedsim.observation import Observation
from fedsim.report.draw.pictures import save_png
from fedsim.result import AttackResult

MEASURES = ("mse", "fft2d_mjp", "psnr", "ssim", "lpips")
"""Those of the paper, in its order; its FFT is `fft2d_mjp`."""

MEAN_OF = 512
"""Pictures at most that the guess without a gradient is the mean of."""


def work(unit: Unit) -> list[Entry]:
    """One entry for each victim and attack; a process of its own may run it.

    Raises:
        RunError: an attack failed; what it has not done is no result.
    """
    gc.collect()  # the models of the unit before refer to each other in circles, and are large
    case, trained, shown = (unit.settings[name] for name in ("case", "checkpoint", "shown"))
    client = Client(unit.settings["config"], trained)
    guesses = Guesses(client.setup.data.train, unit.settings["config"]["seed"])
    folder, entries = unit.out / "pictures", []
    for number, position, image in unit.settings["victims"]:
        observation, truth, measured = client.shares([position], number)
        share = next((value for name, value in measured.items() if name.endswith("mask_ratio")), 0.0)
        answers = _answers(client, observation, truth) if trained is not None and case.variant == "stock" else {}
        if number < shown:
            _save(folder, "x", number, truth.originals)
            if case.ratio is not None:
                _save(folder, f"jigsawed{case.ratio:g}", number, truth.images)
        for attack in unit.settings["attacks"]:
            result = _attack(unit, observation, attack, guesses, position)
            entry: Entry = {"case": case.name, "attack": attack, "number": number, "image": image}
            entry |= {"status": result.status, "reason": result.reason, "seconds": result.seconds, "masked": share}
            if result.images is not None:
                found = score(truth, result.images, None, eight_bit=True)[0]
                entry |= _scored(found) | {"certified": result.certified}
                if number < shown:
                    _save(folder, f"{case.name}-{attack}", number, result.images)
            entries.append(entry | answers)
    return entries


@torch.no_grad()
def _answers(client: Client, observation: Observation, truth: GroundTruth) -> dict[str, bool]:
    """Whether the model is right about what it saw, told the mask and not told."""
    runtime = client.runtime
    model = runtime.model.eval()
    mjp = next((d for d in runtime.defenses.defenses.values() if isinstance(d, MaskedJigsawPuzzle)), None)
    mask = visible_mask(observation)
    seen = runtime.normaliser(truth.images.float())
    uninformed = model(seen)
    informed = uninformed
    if mjp is not None and mask is not None:
        with mjp.masking(mask[None]):
            informed = model(seen)
    labels = truth.labels.to(uninformed.device)
    return {"right": bool(informed.argmax(1) == labels), "right_untold": bool(uninformed.argmax(1) == labels)}


class Guesses:
    """What one has of a client's picture without a gradient: grey, or the mean of others."""

    def __init__(self, pictures: ImageSet, seed: int) -> None:
        self._pictures = pictures
        order = torch.randperm(len(pictures), generator=torch_generator(seed, "mean picture")).tolist()
        self.positions: list[int] = order[:MEAN_OF]

    @cached_property
    def total(self) -> Float[Tensor, "c h w"]:
        """The sum of the pictures at `positions`, in float64."""
        images = (self._pictures.images([position])[0].double() for position in self.positions)
        return reduce(torch.add, images)

    def mean_without(self, victim: int) -> Float[Tensor, "1 c h w"]:
        """The mean picture without the victim's own; grey where there is no other."""
        if len(self._pictures) < 2:
            return torch.full_like(self.total, 0.5)[None]
        own = victim in self.positions
        without = self.total - self._pictures.images([victim])[0].double() if own else self.total
        return (without / max(1, len(self.positions) - own))[None]


def _attack(unit: Unit, observation: Observation, attack: str, guesses: Guesses, position: int) -> AttackResult:
    if attack in (MEAN, GREY):
        grey = torch.full((1, *observation.image_shape), 0.5)
        images = grey if attack == GREY else guesses.mean_without(position)
        return AttackResult(observation.name, attack, "done", baseline=True, images=images)
    config = unit.settings["config"]
    return finished(
        run_attack(observation, attack, config["attack"][attack], config["seed"], torch.device(unit.device))
    )


def _scored(found: ImageScore) -> dict[str, dict[str, float | None]]:
    values: Mapping[str, Any] = found.to_dict()
    return {
        "seen": {name: values[name] for name in MEASURES},
        "private": {name: values[f"private_{name}"] for name in MEASURES},
    }


def _save(folder: Path, name: str, number: int, images: Tensor) -> None:
    path = folder / name / f"{number:03d}.png"
    if not path.exists():
        save_png(images[0], path)
