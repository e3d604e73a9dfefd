"""What is left of images in updates of fine-tuning. Its options are in `options`."""

import argparse
import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fedsim
from attacks.optimization import Budget, GaussNewton, LevenbergMarquardt
from attacks.optimization.second_order.starts import STARTS
from experiments.studies.finetune.options import PICTURES_MODELS, arguments
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.options import matching_names
from experiments.studies.harness.study import Page, Study, Table, Unit
from experiments.studies.harness.tables import number
from experiments.studies.harness.victims import finished
from experiments.studies.harness.weights import train
from experiments.studies.second_order.references import behind_rounding, linear
from experiments.studies.second_order.study import BUDGETS, EXACT, cell, spread
from experiments.studies.second_order.victims import DIGITS, PRIVATE, SIDE, Victims
from fedsim.bounds.public_prior import PublicPrior
from fedsim.bounds.references import determined
from fedsim.determinism import torch_generator
from fedsim.errors import ConfigError, one_of
from fedsim.metrics.matching import match
from fedsim.models import Architecture, ModelSpec, architecture_seed
from fedsim.observation import Observation
from fedsim.report.thresholds import GUESS_MARGIN, RECOGNISABLE
from fedsim.result import AttackResult
from fedsim.settings.composition import finetune_of

BACKBONES = {"trained": "trained on public images", "drawn": "as drawn"}
DIGITS_MODEL = ModelSpec("vit_nano_patch2_8", num_classes=10)
SPECS = {
    "vit_tiny": ModelSpec("vit_tiny_patch16_224", 10, SIDE, 8, kwargs={"depth": 2}),
    "vit_nano": ModelSpec("vit_nano_patch2_8", 10, SIDE, 8),
}
TRAINING, LR, BATCH = 300, 3e-3, 32
"""Adam's steps of the public backbone, on digits."""
OF_PICTURES = 600, 1e-3, 64
"""The same on a folder's."""
CLIENTS, HELD, FIRST = 8, 25, 100
"""Of the rounds before the attacked one, with the digits from `FIRST` on; those before are attacked."""
MOST = FIRST
WHOLE = 10**8
"""Numbers shared times unknowns, up to which J is computed."""


@dataclass(frozen=True)
class Case:
    """A recipe, and the round whose update is attacked."""

    finetune: str
    server_round: int = 1


@dataclass(frozen=True)
class Start:
    """The weights that everybody has.

    Attributes:
        pictures: a folder; None: digits, at `DIGITS_MODEL`.
        model: of `SPECS`, for a folder's.
    """

    backbone: str
    seed: int
    pictures: str | None = None
    model: str = "vit_tiny"

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Start":
        model = settings.get("model", "vit_tiny")
        return cls(settings["backbone"], settings["seed"], settings["pictures"], model)

    @property
    def source(self) -> Victims:
        return _source(self.pictures)


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
    pictures = None if options.pictures is None else str(options.pictures.resolve())
    one_of("--model", options.model, PICTURES_MODELS)
    if pictures is None and options.model != "vit_tiny":
        raise ConfigError("--model", options.model, "left out without --pictures: digits have `vit_nano`")
    backbones = matching_names("--backbones", BACKBONES, options.backbones)
    cases = matching_names("--recipes", CASES, options.recipes)
    steps, restarts = BUDGETS[options.scale]
    batches = sorted(set(options.batches))
    available = _source(pictures).available
    most, where = min(MOST, available), f", {pictures} having {available} private images" if pictures else ""
    if not 1 <= batches[0] <= batches[-1] <= most:
        raise ConfigError("--batches", " ".join(map(str, batches)), f"1 to {most}{where}")
    for batch in batches:
        if not 1 <= images <= most // batch * batch:
            raise ConfigError("--images", images, f"1 to {most // batch * batch} in batches of {batch}{where}")
    if any(CASES[case].server_round > 1 for case in cases) and available < (needed := FIRST + HELD * CLIENTS):
        raise ConfigError(
            "--pictures", pictures, f"a folder with {needed} private images for rounds after the first, not {available}"
        )
    for start in options.starts:
        one_of("--starts", start, STARTS)
    settings = {"steps": steps, "restarts": restarts, "seed": options.seed, "pictures": pictures}
    settings["starts"] = list(options.starts)
    if options.model != "vit_tiny":  # as in folders of before
        settings["model"] = options.model
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
    start = Start.of(settings)
    images, labels = start.source.images(range(settings["first"], settings["first"] + settings["batch"]))
    seen, prior = observed(start, CASES[settings["case"]], images, labels), start.source.public()
    entry: Entry = {"numbers": sum(tensor.numel() for tensor in seen.update.tensors.values())}
    if settings["first"] == 0:
        entry |= held(seen, images, labels, prior)
    used = time.process_time()
    result = finished(attacked(seen, settings, unit.device))
    entry["cpu_seconds"] = time.process_time() - used
    if result.images is None:
        return [entry | {"refused": result.reason}]
    entry["certified"] = result.certified
    entry["attack"], entry["reason"] = result.attack, result.certificate.reason
    entry["seconds"] = result.seconds
    found = result.images.double().cpu()
    errors = (found[match(images, found)] - images).square().mean(dim=(1, 2, 3)).tolist()
    guesses = (images - prior.mean).square().mean(dim=(1, 2, 3)).tolist()
    pairs = zip(errors, guesses, strict=True)
    return [entry | {"squared_error": error, "guess": guess} for error, guess in pairs]


def attacked(seen: Observation, settings: Mapping[str, Any], device: str) -> AttackResult:
    """Second order; of one picture the closed form first, where it applies: it alone can be certified at that size.

    Of several it gives a mixture.
    """
    if settings["pictures"] is not None and settings["batch"] == 1:
        result = fedsim.attack("patch_gradient", seen, seed=settings["seed"], device=device)
        if result.status != "refused":
            return result
    search = LevenbergMarquardt(steps=settings["steps"], restarts=settings["restarts"], starts=settings["starts"])
    attack = GaussNewton(search, budget=Budget(frames=0, save_every=0))
    return fedsim.attack(attack, seen, seed=settings["seed"], device=device)


def held(seen: Observation, images: Tensor, labels: Tensor, prior: PublicPrior) -> Entry:
    """What the update holds of its images: directions, what rounding would leave, and a reference behind it.

    Nothing of an update so large that J would not be computed whole.
    """
    numbers, unknowns = sum(tensor.numel() for tensor in seen.update.tensors.values()), images.numel()
    if numbers * unknowns > WHOLE:
        return {"rank": None, "unknowns": unknowns}
    jacobian, _, floor = linear(seen, images, labels, prior)
    local = determined(jacobian, floor)
    rounding = local.rounding_psnr if math.isfinite(local.rounding_psnr) else None
    public = behind_rounding(jacobian, floor, prior)
    return {"rank": local.rank, "unknowns": unknowns, "rounding": rounding, "public": public}


def _source(pictures: str | None) -> Victims:
    return Victims(None if pictures is None else Path(pictures))


def observed(start: Start, case: Case, images: Tensor, labels: Tensor) -> Observation:
    """What one client would share of a batch in that round."""
    model = at_round(start, case)
    seen = fedsim.observe(model, images.float(), labels, finetune=case.finetune, seed=start.seed)
    return replace(seen, image_prior=start.source.public(), public_images=start.source.public_images())


@cache
def at_round(start: Start, case: Case) -> nn.Module:
    """The global model that the round begins with: FedAvg of clients with a few images each, an epoch a round."""
    public = copy.deepcopy(public_backbone(start))
    model = finetune_of(case.finetune).prepare(public, architecture_seed(start.seed))
    for server_round in range(1, case.server_round):
        sent = [_trained(model, client, start, case.finetune, server_round) for client in range(CLIENTS)]
        mean = {name: torch.stack([one[name] for one in sent]).mean(dim=0) for name in sent[0]}
        model.load_state_dict({**model.state_dict(), **mean})
    return model


def _trained(model: nn.Module, client: int, start: Start, finetune: str, server_round: int) -> dict[str, Tensor]:
    own = start.source.images(range(FIRST + HELD * client, FIRST + HELD * (client + 1)))
    step: dict[str, Any] = {"share": "weights", "batch_size": 5, "lr": 0.1, "seed": start.seed}
    images, labels = own[0].float(), own[1]
    about: dict[str, Any] = {"finetune": finetune, "server_round": server_round, "client": client}
    return dict(fedsim.observe(model, images, labels, **step, **about).update.tensors)


@cache
def public_backbone(start: Start) -> nn.Module:
    """The model with those weights."""
    model = Architecture(DIGITS_MODEL if start.pictures is None else SPECS[start.model], (), 0).build()
    if start.backbone == "trained":
        images, labels = start.source.of_nobody()
        steps, lr, batch = (TRAINING, LR, BATCH) if start.pictures is None else OF_PICTURES
        inputs = (images.float() - 0.5) / 0.5
        train(model, inputs, labels, steps, batch, lr, torch_generator(start.seed, "public"))
    return model


def page(entries: Sequence[Mapping[str, Any]], cells: Sequence[Cell], images: int, settings: Mapping[str, Any]) -> Page:
    """One table: a row for each cell."""
    rows, record = [], []
    for one in cells:
        own = [entry for entry in entries if entry["unit"].startswith(f"{one.key}/")]
        values, numbers = cell(own), own[0]["numbers"]
        shared = [values[name] for name in ("floor", "median", "guess", "public", "rounding")]
        counts = [values[name] for name in ("least", "most", "recognisable", "exact", "certified", "done")]
        record.append([*astuple(one), numbers, values["rank"], values["unknowns"], *shared, *counts])
        shown = [number(value, ".1f") for value in shared]
        found = [f"{values[name]} of {values['done']}" for name in ("recognisable", "exact")]
        directions = "" if values["rank"] is None else f"{values['rank']} of {values['unknowns']}"
        row = [BACKBONES[one.backbone], one.case, str(one.batch), f"{numbers:,}", directions, *shown[:2]]
        row += [spread(values), *shown[2:]]
        rows.append([*row, *found, str(values["certified"]), outcome(values)])
    header = ["backbone", "recipe", "images", "numbers shared", "directions of the images in them"]
    header += ["dB of the mean error", "median dB", "least / most", "a guess", "public reference", "rounding alone"]
    header += ["recognisable", f"above {EXACT:.0f} dB", "certified", "outcome"]
    names = ["backbone", "recipe", "batch", "numbers", "rank", "unknowns", "floor", "median", "guess", "public"]
    names += ["rounding", "least", "most", "recognisable", "exact", "certified", "done"]
    pictures = settings["pictures"] is not None
    noun = "pictures of 32 pixels" if pictures else "digits"
    model = PICTURES_MODELS[settings.get("model", "vit_tiny")] if pictures else "`vit_nano`"
    introduction = (
        f"`gauss_newton` on the gradient of a batch of {noun} at {model}, {images} a cell or the next whole number of "
        f"batches, {settings['steps']} steps of each start ({', '.join(settings['starts'])}). Floors are what this "
        "search reached, no more. Directions are those in which the first update moves with its images, near them and "
        "beyond float64's rounding: fewer than there are unknowns leave many images for one update; all of them prove "
        "no leakage that a search finds. Rounding alone is what float32 would leave of them to who has solved for the "
        "rest. The public reference is what second moments alone could give of Gaussian images with the spectrum of "
        "public ones, from the same update: no bound. Compare it with the dB of the mean error. Recognisable is an "
        f"image of {RECOGNISABLE:.0f} dB and more that is {GUESS_MARGIN:.0f} dB above its guess."
    )
    whose = "half of the folder's pictures" if pictures else f"{DIGITS - PRIVATE} digits"
    differs = [
        f"The guess is the mean of {whose} that are nobody's; so is the prior of the attack. A trained backbone has "
        f"learned them in {OF_PICTURES[0] if pictures else TRAINING} steps of Adam.",
        f"Before round r the model has seen r - 1 rounds of FedAvg: {CLIENTS} clients, {HELD} images each, an epoch of "
        "SGD at 0.1 in batches of 5. The attacked ones are none of them. Labels are read off the update.",
    ]
    if pictures:
        differs.append(
            "Where `patch_gradient` applies it is the attack on one picture. Directions, reference and rounding are "
            f"left out where J has more than {WHOLE:,} entries."
        )
    table = Table("finetune", "What is left in updates of fine-tuning", header, rows, (names, record))
    return Page("finetune", "Leakage from fine-tuning updates", introduction, [table], differs)


def outcome(values: Mapping[str, Any]) -> str:
    """What keeps a row's images below 60 dB: directions that the update does not hold, or the search."""
    missed, rank = values["done"] - values["exact"], values["rank"]
    if not values["done"]:
        return "refused"
    if not missed:
        return "found"
    if rank is not None and rank < values["unknowns"]:
        return f"{values['unknowns'] - rank} directions missing"
    return f"the search fell short in {missed}"
