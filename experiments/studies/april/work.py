"""What one worker does for the reproduction of APRIL: takes gradients, attacks them, and scores the pictures."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from attacks.base import Frame
from attacks.running import run_attack, run_attack_on_many
from experiments.studies.april.options import CLOSED_FORM, FIXED_PE
from experiments.studies.harness.client import Client
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Unit
from experiments.studies.harness.victims import finished
from fedsim.ground_truth import GroundTruth
from fedsim.metrics.image import psnr
from fedsim.metrics.score import score
from fedsim.models import Normaliser
from fedsim.observation import Observation
from fedsim.report.draw.pictures import save_png
from fedsim.result import AttackResult

GREY, MEAN = "grey", "mean"
"""Guesses without a gradient."""

ORIGINAL = "original"
"""The client's picture, where pictures are kept."""

SHOWN = 3
"""Pictures of a figure."""


@dataclass(frozen=True)
class AprilVictim:
    """One picture of one client.

    Attributes:
        number: the client's; its draws depend on it.
    """

    number: int
    observation: Observation
    truth: GroundTruth


def work(unit: Unit) -> list[Entry]:
    """All results of a unit.

    Raises:
        RunError: an attack failed; what it has not done is no result.
    """
    client = Client(unit.settings["config"])
    entries = {CLOSED_FORM: _closed_forms, "matching": _matching, FIXED_PE: _fixed}[unit.settings["part"]](unit, client)
    return [{"part": unit.settings["part"], **unit.settings["tags"], **entry} for entry in entries]


def image_path(out: Path, entry: Mapping[str, Any]) -> Path:
    """Where an entry's picture is kept, of those that a figure may show."""
    place = entry["arm"] if entry["part"] == "matching" else f"{entry['kind']}-{entry['attack']}"
    return out / "pictures" / str(entry["part"]) / f"seed{entry['seed']}" / place / f"{entry['number']:03d}.png"


def _closed_forms(unit: Unit, client: Client) -> Iterator[Entry]:
    tags = unit.settings["tags"]
    public = guesses(client) if (tags["variant"], tags["dtype"]) == ("stock", "float32") else {}  # once for each model
    for victim in _victims(unit, client):
        observation = victim.observation
        width, pixels = observation.global_state[str(observation.roles.patch_weight)].flatten(1).shape
        assert observation.roles.grid is not None
        tokens = observation.roles.prefix_tokens + observation.roles.grid[0] * observation.roles.grid[1]
        sizes = {"tokens": tokens, "width": width, "pixels": pixels}
        for name in unit.settings["attacks"]:
            yield {**sizes, "attack": name, **_scored(victim, _attack(unit, victim, name))}
        for name, image in public.items():
            yield {**sizes, "attack": name, **_scored(victim, image)}


def _matching(unit: Unit, client: Client) -> Iterator[Entry]:
    """The search on all victims at once, and, beside plain matching, the guesses."""
    victims = list(_victims(unit, client))
    settings, seed, device = unit.settings["attacks"]["matching"], unit.settings["config"]["seed"], unit.device
    observed = [victim.observation for victim in victims]
    # One name for all arms: those that search for the client's gradient start from the same noise.
    results = run_attack_on_many(observed, "matching", settings, seed, torch.device(device))
    for victim, result in zip(victims, results, strict=True):
        compare = Losses(victim)
        found = _scored(victim, finished(result))
        assert result.images is not None
        _keep(unit, victim, {"arm": unit.settings["tags"]["arm"]}, result.images)
        curve = _curve(victim, result.frames, compare)
        yield found | compare(result.images) | curve | {"prefix_share": compare.prefix_share}
    if unit.settings["tags"]["arm"] == "plain":
        for name, image in guesses(client).items():
            for victim in victims:
                _keep(unit, victim, {"arm": name}, image)
                yield {"arm": name, **_scored(victim, image), **Losses(victim)(image)}
        for victim in victims:
            _keep(unit, victim, {"arm": ORIGINAL}, victim.truth.originals)


def _fixed(unit: Unit, client: Client) -> Iterator[Entry]:
    """Published attacks and ours on one picture behind a fixed embedding; APRIL on its own architecture."""
    public = guesses(client)
    theirs = Client(unit.settings["april"])
    for victim in _victims(unit, theirs):
        yield {"attack": "april", **_scored(victim, _attack(unit, victim, "april", unit.settings["april"]["attack"]))}
    for victim in _victims(unit, client):
        for name in unit.settings["attacks"]:
            result = _attack(unit, victim, name)
            if result.images is not None:
                _keep(unit, victim, {"attack": name}, result.images)
            yield {"attack": name, **_scored(victim, result)}
        for name, image in public.items():
            _keep(unit, victim, {"attack": name}, image)
            yield {"attack": name, **_scored(victim, image)}
        _keep(unit, victim, {"attack": ORIGINAL}, victim.truth.originals)


def _victims(unit: Unit, client: Client) -> Iterator[AprilVictim]:
    for number, position in enumerate(unit.settings["positions"], unit.settings.get("first", 0)):
        observation, truth, _ = client.shares([position], number)
        yield AprilVictim(number, observation, truth)


def _attack(unit: Unit, victim: AprilVictim, name: str, settings: Mapping[str, Any] | None = None) -> AttackResult:
    chosen = (settings or unit.settings["attacks"])[name]
    seed = unit.settings["config"]["seed"]
    return finished(run_attack(victim.observation, name, chosen, seed, torch.device(unit.device)))


def guesses(client: Client) -> dict[str, Float[Tensor, "1 c h w"]]:
    """What one has without a gradient: grey, and where there are public pictures, their mean."""
    image = client.setup.guess()[None]
    return {GREY: torch.full_like(image, 0.5)} | ({MEAN: image} if len(client.setup.held) else {})


def _scored(victim: AprilVictim, result: AttackResult | Tensor) -> Entry:
    entry: Entry = {"number": victim.number, "image": victim.truth.ids[0], "status": "done", "reason": ""}
    images = None
    if isinstance(result, Tensor):
        images = result
    else:
        entry |= {"status": result.status, "reason": result.reason, "seconds": result.seconds}
        if result.status == "done":
            entry["certified"], images = result.certified, result.images
    if images is None:
        return entry
    found = score(victim.truth, images, None, perceptual=False)[0]
    return entry | {"mse": found.mse, "psnr": found.psnr, "ssim": found.ssim}


def _curve(victim: AprilVictim, frames: tuple[Frame, ...], compare: "Losses") -> Entry:
    """The best candidate on the way: PSNR in dB, and how far its gradient was from the client's."""
    losses = [compare(frame.images) for frame in frames]
    return {
        "steps": [frame.step for frame in frames],
        "psnr_curve": [float(psnr(frame.images, victim.truth.images)[0]) for frame in frames],
        "loss_curve": [loss["loss"] for loss in losses],
    }


def _keep(unit: Unit, victim: AprilVictim, more: Mapping[str, Any], images: Tensor) -> None:
    if victim.number < SHOWN:
        entry = {"part": unit.settings["part"], **unit.settings["tags"], **more, "number": victim.number}
        save_png(images[0], image_path(unit.out, entry))


class Losses:
    """How far a picture's gradient is from that of the client's picture, with the client's label, for any search.

    `loss` is ‖g - g'‖²/‖g'‖² over what the client shared; `rest` is the same over all tensors but ∂L/∂E_pos, `position`
    over its patch rows, whether it was shared or not.

    Attributes:
        prefix_share: of the squared norm of ∂L/∂E_pos, in the rows of prefix tokens.
    """

    def __init__(self, victim: AprilVictim) -> None:
        self._observation, self._labels = victim.observation, victim.truth.labels
        self._model = self._observation.build_model()
        self._normaliser = Normaliser(self._model)
        self._target = self._gradient(victim.truth.images)
        sizes = self._rows(self._target).double().square().sum(dim=1)
        self.prefix_share = float(sizes[: self._observation.roles.embedded_prefix_tokens].sum() / sizes.sum())

    def __call__(self, images: Float[Tensor, "1 c h w"]) -> dict[str, float]:
        found, prefix = self._gradient(images), self._observation.roles.embedded_prefix_tokens
        shared = [name for name in found if name in self._observation.gradient]
        rest = [name for name in found if name != self._observation.roles.pos_embed]
        rows = (self._rows(found)[prefix:], self._rows(self._target)[prefix:])
        loss, other = (_relative([(found[n], self._target[n]) for n in names]) for names in (shared, rest))
        return {"loss": loss, "rest": other, "position": _relative([rows])}

    def _rows(self, gradient: Mapping[str, Tensor]) -> Float[Tensor, "tokens width"]:
        return gradient[str(self._observation.roles.pos_embed)].flatten(0, -2)

    def _gradient(self, images: Float[Tensor, "1 c h w"]) -> dict[str, Tensor]:
        parameters = dict(self._model.named_parameters())
        seen = self._normaliser(images.to(next(iter(parameters.values())).dtype))
        loss = F.cross_entropy(self._model(seen), self._labels)
        return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))


def _relative(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Σ‖found - target‖² / Σ‖target‖²."""
    difference = sum(float((found - target).double().square().sum()) for found, target in pairs)
    return difference / sum(float(target.double().square().sum()) for _, target in pairs)
