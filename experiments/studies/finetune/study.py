"""What is left of images in updates of fine-tuning. Its options are in `options`."""

import argparse
import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedsim
from attacks.optimization import Budget, GaussNewton, LevenbergMarquardt
from experiments.studies.finetune.options import arguments
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Page, Study, Table, Unit
from experiments.studies.second_order.references import linear
from experiments.studies.second_order.study import BUDGETS, EXACT, cell, chosen
from experiments.studies.second_order.victims import DIGITS, PRIVATE, digits, public
from fedsim.bounds.references import determined
from fedsim.determinism import torch_generator
from fedsim.errors import ConfigError
from fedsim.metrics.matching import match
from fedsim.models import Architecture, ModelSpec, architecture_seed
from fedsim.observation import Observation
from fedsim.settings.composition import finetune_of

BACKBONES = {"trained": f"trained on {DIGITS - PRIVATE} public digits", "drawn": "as drawn"}
TRAINING, LR, BATCH = 300, 3e-3, 32
"""Adam's steps of the public backbone."""
CLIENTS, HELD, FIRST = 8, 25, 100
"""Of the rounds before the attacked one, with the digits from `FIRST` on; those before are attacked."""
MOST = FIRST


@dataclass(frozen=True)
class Case:
    """A recipe, and the round whose update is attacked."""

    finetune: str
    server_round: int = 1


@dataclass(frozen=True)
class Cell:
    """A row: a public model, a recipe in a round, and the images of an update."""

    backbone: str
    case: str
    batch: int

    @property
    def key(self) -> str:
        return f"{self.backbone}/{self.case}/B={self.batch}"


CASES = {
    **{name: Case(name) for name in ("full", "last_k", "head", "bias", "norm")},
    **{f"lora round {number}": Case("lora", number) for number in (1, 2, 6, 21)},
    **{f"adapter round {number}": Case("adapter", number) for number in (1, 21)},
    "prompt": Case("prompt"),
}


def run(options: argparse.Namespace) -> None:
    """From settings to the page.

    Raises:
        ConfigError: an option cannot work.
        RunError: a unit failed.
    """
    images = (8 if options.scale == "paper" else 3) if options.images is None else options.images
    if not 1 <= images <= MOST:
        raise ConfigError("--images", images, f"1 to {MOST}")
    backbones = chosen("--backbones", options.backbones, BACKBONES)
    cases = chosen("--recipes", options.recipes, CASES)
    steps, restarts = BUDGETS[options.scale]
    batches = sorted(set(options.batches))
    if not 1 <= batches[0] <= batches[-1] <= MOST:
        raise ConfigError("--batches", " ".join(map(str, batches)), f"1 to {MOST}")
    settings = {"steps": steps, "restarts": restarts, "seed": options.seed}
    cells = [Cell(backbone, case, batch) for backbone in backbones for case in cases for batch in batches]
    units = [
        Unit.of(options, f"{cell.key}/{first}", {"first": first, **asdict(cell), **settings})
        for cell in cells
        for first in range(0, images, cell.batch)
    ]
    shown = partial(page, cells=cells, images=images, settings=settings)
    Study(arguments(), [options.seed], settings, [units], work, shown).run(options)


def work(unit: Unit) -> list[Entry]:
    """One update, the attack on it, and of a cell's first what it holds of its images; a process of its own may run it.

    An entry for each image.
    """
    settings = unit.settings
    images, labels = digits(range(settings["first"], settings["first"] + settings["batch"]))
    seen = observed(settings["backbone"], CASES[settings["case"]], images, labels, settings["seed"])
    about: Entry = {"numbers": sum(tensor.numel() for tensor in seen.update.tensors.values())}
    if settings["first"] == 0:
        jacobian, _, floor = linear(seen, images, labels, public())
        held = determined(jacobian, floor)
        rounding = held.rounding_psnr if math.isfinite(held.rounding_psnr) else None
        about |= {"rank": held.rank, "unknowns": held.unknowns, "rounding": rounding}
    search = LevenbergMarquardt(steps=settings["steps"], restarts=settings["restarts"])
    attack = GaussNewton(search, budget=Budget(frames=0, save_every=0))
    result = fedsim.attack(attack, seen, seed=settings["seed"], device=unit.device)
    if result.status != "done" or result.images is None:
        return [about | {"refused": result.reason}]
    about["certified"] = result.certificate is not None and result.certificate.status == "certified"
    about["seconds"] = result.seconds
    found = result.images.double().cpu()
    errors = (found[match(images, found)] - images).square().mean(dim=(1, 2, 3)).tolist()
    guesses = (images - public().mean).square().mean(dim=(1, 2, 3)).tolist()
    pairs = zip(errors, guesses, strict=True)
    return [about | {"squared_error": error, "guess": guess} for error, guess in pairs]


def observed(backbone: str, case: Case, images: Tensor, labels: Tensor, seed: int) -> Observation:
    """What one client would share of a batch in that round."""
    model = at_round(backbone, case, seed)
    seen = fedsim.observe(model, images.float(), labels, finetune=case.finetune, seed=seed)
    return replace(seen, image_prior=public())


@cache
def at_round(backbone: str, case: Case, seed: int) -> nn.Module:
    """The global model that the round begins with: FedAvg of clients with a few digits each, an epoch a round."""
    model = finetune_of(case.finetune).prepare(copy.deepcopy(public_backbone(backbone, seed)), architecture_seed(seed))
    for server_round in range(1, case.server_round):
        sent = [_trained(model, case.finetune, client, server_round, seed) for client in range(CLIENTS)]
        mean = {name: torch.stack([one[name] for one in sent]).mean(dim=0) for name in sent[0]}
        model.load_state_dict({**model.state_dict(), **mean})
    return model


def _trained(model: nn.Module, finetune: str, client: int, server_round: int, seed: int) -> dict[str, Tensor]:
    held = digits(range(FIRST + HELD * client, FIRST + HELD * (client + 1)))
    step: dict[str, Any] = {"share": "weights", "batch_size": 5, "lr": 0.1, "seed": seed}
    images, labels = held[0].float(), held[1]
    about: dict[str, Any] = {"finetune": finetune, "server_round": server_round, "client": client}
    return dict(fedsim.observe(model, images, labels, **step, **about).update.tensors)


@cache
def public_backbone(backbone: str, seed: int) -> nn.Module:
    """The weights that everybody has."""
    model = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10), (), 0).build()
    if backbone == "trained":
        rng, optimiser = torch_generator(seed, "public"), torch.optim.Adam(model.parameters(), lr=LR)
        for _ in range(TRAINING):
            drawn = (PRIVATE + torch.randint(DIGITS - PRIVATE, (BATCH,), generator=rng)).tolist()
            images, labels = digits(drawn)
            optimiser.zero_grad()
            F.cross_entropy(model((images.float() - 0.5) / 0.5), labels).backward()
            optimiser.step()
    return model


def page(entries: Sequence[Mapping[str, Any]], cells: Sequence[Cell], images: int, settings: Mapping[str, Any]) -> Page:
    """One table: a row for each cell."""
    rows, record = [], []
    for one in cells:
        own = [entry for entry in entries if entry["unit"].startswith(f"{one.key}/")]
        values, numbers = cell(own), own[0]["numbers"]
        shared = [values[name] for name in ("floor", "median", "guess", "rounding")]
        counts = [values[name] for name in ("exact", "certified", "done")]
        record.append([*astuple(one), numbers, values["rank"], values["unknowns"], *shared, *counts])
        shown = ["" if value is None else f"{value:.1f}" for value in shared]
        exact = f"{values['exact']} of {values['done']}"
        held = f"{values['rank']} of {values['unknowns']}"
        row = [BACKBONES[one.backbone], one.case, str(one.batch), f"{numbers:,}", held, *shown]
        rows.append([*row, exact, str(values["certified"])])
    header = ["backbone", "recipe", "images", "numbers shared", "directions of the images in them"]
    header += ["dB of the mean error", "median dB", "a guess", "rounding alone", f"above {EXACT:.0f} dB", "certified"]
    names = ["backbone", "recipe", "batch", "numbers", "rank", "unknowns", "floor", "median", "guess", "rounding"]
    names += ["exact", "certified", "done"]
    introduction = (
        f"`gauss_newton` on the gradient of a batch of digits at `vit_nano`, {images} digits a cell or the next whole "
        f"number of batches, {settings['steps']} steps of each start. Floors are what this search reached, no more. "
        "Directions are those in which the first update moves with its images, near them and beyond float64's "
        "rounding: fewer than there are unknowns leave many images for one update; all of them prove no leakage that a "
        "search finds. Rounding alone is what float32 would leave of them to who has solved for the rest."
    )
    differs = [
        f"The guess is the mean of {DIGITS - PRIVATE} digits that are nobody's; so is the prior of the attack.",
        f"Before round r the model has seen r - 1 rounds of FedAvg: {CLIENTS} clients, {HELD} digits each, an epoch of "
        "SGD at 0.1 in batches of 5. The attacked digits are none of them. Labels are read off the update.",
    ]
    table = Table("finetune", "What is left in updates of fine-tuning", header, rows, (names, record))
    return Page("finetune", "Leakage from fine-tuning updates", introduction, [table], differs)
