"""What one worker does for MJP's Table 5: takes clients' gradients, attacks them and scores the pictures."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.running import run_attack
from defenses.mjp import MaskedJigsawPuzzle
from experiments.studies.harness.client import Client
from experiments.studies.harness.ledger import Entry
from experiments.studies.mjp_table5.attacks import visible_mask
from experiments.studies.mjp_table5.rows import GREY, MEAN, TableCase
from fedsim.data import ImageSet
from fedsim.determinism import torch_generator
from fedsim.ground_truth import GroundTruth
from fedsim.metrics.records import ImageScore
from fedsim.metrics.score import score
from fedsim.observation import Observation
from fedsim.report.draw.pictures import save_png
from fedsim.result import AttackResult
from fedsim.settings.composition import Config

MEASURES = ("mse", "fft2d_mjp", "psnr", "ssim", "lpips")
"""Those of the paper, in its order; its FFT is `fft2d_mjp`."""

MEAN_OF = 512
"""Pictures at most that the guess without a gradient is the mean of."""


@dataclass(frozen=True)
class TableVictim:
    """One picture of one client.

    Attributes:
        number: the client's; its draws depend on it.
        position: in the set of pictures.
        attacks: those still to run.
    """

    number: int
    position: int
    image: str
    attacks: tuple[str, ...]


@dataclass(frozen=True)
class TableUnit:
    """Victims of one case, that share a model.

    Attributes:
        config: of an audit, with the settings of every attack by its name in the table.
        checkpoint: weights of the model; None: as it was initialised.
        folder: where the pictures go that the figure shows, those of clients below `shown`.
        public: the sum of the pictures that the guess is the mean of.
        device: of the attacks.
    """

    case: TableCase
    config: Config
    victims: Sequence[TableVictim]
    checkpoint: Path | None
    folder: Path
    shown: int
    public: Tensor | None
    device: str
    threads: int


def run_unit(unit: TableUnit) -> list[Entry]:
    """All results of a unit; a process of its own may run it."""
    return list(results(unit))


def results(unit: TableUnit) -> Iterator[Entry]:
    """One entry for each victim and attack, as they come."""
    torch.set_num_threads(unit.threads)
    gc.collect()  # the models of the unit before refer to each other in circles, and are large
    client = Client(unit.config, unit.checkpoint)
    for victim in unit.victims:
        observation, truth, measured = client.shares([victim.position], victim.number)
        share = next((value for name, value in measured.items() if name.endswith("mask_ratio")), 0.0)
        asked = unit.checkpoint is not None and unit.case.variant == "stock"
        answers = _answers(client, observation, truth) if asked else {}
        if victim.number < unit.shown:
            _save(unit.folder, "x", victim.number, truth.originals)
            if unit.case.ratio is not None:
                _save(unit.folder, f"jigsawed{unit.case.ratio:g}", victim.number, truth.images)
        for attack in victim.attacks:
            result = _attack(unit, client, victim, observation, attack)
            entry: Entry = {"case": unit.case.name, "attack": attack, "number": victim.number, "image": victim.image}
            entry |= {"status": result.status, "reason": result.reason, "seconds": result.seconds, "masked": share}
            if result.images is not None:
                found = score(truth, result.images, None, eight_bit=True)[0]
                entry |= _scored(found) | {"certified": result.certified}
                if victim.number < unit.shown:
                    _save(unit.folder, f"{unit.case.name}-{attack}", victim.number, result.images)
            yield entry | answers


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


def public_mean(pictures: ImageSet, seed: int, total: Tensor, victim: int) -> Float[Tensor, "1 c h w"]:
    """The mean picture without the victim's own."""
    members = public_positions(len(pictures), seed)
    own = pictures.images([victim])[0].double()
    without = total - own if victim in members else total
    return (without / max(1, len(members) - (victim in members)))[None]


def public_sum(pictures: ImageSet, seed: int) -> Float[Tensor, "c h w"]:
    """The sum of the pictures at `public_positions`, in float64."""
    total = None
    for position in public_positions(len(pictures), seed):
        image = pictures.images([position])[0].double()
        total = image if total is None else total + image
    assert total is not None
    return total


def public_positions(count: int, seed: int) -> list[int]:
    order = torch.randperm(count, generator=torch_generator(seed, "mean picture")).tolist()
    return order[:MEAN_OF]


def _attack(
    unit: TableUnit, client: Client, victim: TableVictim, observation: Observation, attack: str
) -> AttackResult:
    if attack in (MEAN, GREY):
        pictures = client.setup.data.train
        shape = (1, *observation.image_shape)
        if attack == GREY or unit.public is None or len(pictures) < 2:
            images = torch.full(shape, 0.5)
        else:
            images = public_mean(pictures, unit.config["seed"], unit.public, victim.position)
        return AttackResult(observation.name, attack, "done", baseline=True, images=images)
    settings = unit.config["attack"][attack]
    return run_attack(observation, attack, settings, unit.config["seed"], torch.device(unit.device))


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
