"""How far second-order matching gets, and what stands beside it. Its options are in `options`."""

import argparse
import math
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import fedsim
from attacks.base import Attack
from attacks.optimization import Budget, GaussNewton, LevenbergMarquardt
from attacks.optimization.second_order.starts import STARTS
from attacks.result import psnr_of
from defenses import QSGD, Defense, GradientNoise, Half, TopK, Withhold
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.options import matching_names
from experiments.studies.harness.study import Page, Study, Table, Unit, counted
from experiments.studies.harness.tables import mean, number
from experiments.studies.harness.victims import finished
from experiments.studies.second_order import victims
from experiments.studies.second_order.options import arguments
from experiments.studies.second_order.references import ROWS_EACH, left_by_rounding, linear, noise_std, sketched
from experiments.studies.second_order.victims import (
    DIGITS,
    DIGITS_MODELS,
    MODELS,
    PRIVATE,
    SHAPE,
    Victims,
    digits,
    of_class,
    public,
)
from fedsim.bounds.public_prior import PublicPrior
from fedsim.bounds.references import determined, gaussian_reference, image_by_image, information, prior_precision
from fedsim.errors import one_of
from fedsim.memory.peak import peak_memory
from fedsim.observation import Observation
from fedsim.report.thresholds import is_recognisable

READ = ["patch_embed.*", "pos_embed", "blocks.0.attn.qkv.*", "blocks.0.mlp.*"]
EXACT = 60.0
BESIDE = (
    "white",
    "public",
    "white_each",
    "public_each",
    "class_each",
    "rounding",
    "least_rounding",
    "determined",
    "rank",
    "unknowns",
)
SPENT = {"seconds": ".0f", "cpu_seconds": ".0f", "peak_gib": ".1f"}
"""What an attack takes, and how it is shown; memory is the process's so far."""
BUDGETS = {"small": (30, 3), "paper": (60, 4)}
"""Steps of each start, and how many public images and draws of the prior are tried."""
ATTACKS = {
    "patch_gradient": "the closed form",
    "row_space": "the closed form",
    "first_block": "the closed form",
    "gauss_newton": "second order",
    "gauss_newton_white": "the same, told of public images no more than mean and variance",
}


NO_ATTACK = "none"
"""Stands in the place of an attack in a row of references alone."""


@dataclass(frozen=True)
class Share:
    """What clients share; `relative`: the noise's norm over the gradient's; `kept`: of `topk`."""

    withheld: tuple[str, ...] = ()
    relative: float = 0.0
    compressed: str = ""
    kept: float = 0.1

    @property
    def coarse(self) -> bool:
        """Whether numbers travel coarser than float32's, whose rounding is then not what leaves an image unclear."""
        return self.compressed in ("half", "qsgd")

    def defenses(self, model: str) -> list[Defense]:
        fixed = {"pos_embed"} if "sincos" in model else set()
        withheld = [pattern for pattern in self.withheld if pattern not in fixed]
        found: list[Defense] = [Withhold(withheld)] if withheld else []
        found += [GradientNoise(relative_norm=self.relative)] if self.relative else []
        compressions = {"half": Half(), "qsgd": QSGD(), "topk": TopK(self.kept, error_feedback=False)}
        return found + ([compressions[self.compressed]] if self.compressed else [])


SHARES = {
    "everything": Share(),
    "without what closed forms read": Share(tuple(READ)),
    "biases alone": Share(("*weight", "pos_embed", "cls_token")),
    "norms alone": Share(("patch_embed.*", "pos_embed", "cls_token", "blocks.*.attn.*", "blocks.*.mlp.*", "head.*")),
    "last block and head": Share(("patch_embed.*", "pos_embed", "cls_token", "blocks.0.*")),
    **{f"noise {size:g}": Share(relative=size) for size in (1e-4, 1e-3, 1e-2, 1e-1)},
    "half": Share(compressed="half"),
    "qsgd": Share(compressed="qsgd"),
    "topk 0.1": Share(compressed="topk"),
    "topk 0.01": Share(compressed="topk", kept=0.01),
}


def run(options: argparse.Namespace) -> None:
    """From settings to the page.

    Raises:
        ConfigError: an option cannot work.
        RunError: a unit failed.
    """
    images = (20 if options.scale == "paper" else 3) if options.images is None else options.images
    known = DIGITS_MODELS if options.pictures is None else MODELS
    models = matching_names("--models", known, options.models)
    for source in {Victims.of(model, options.pictures) for model in models}:
        source.check_count(images)
    shares = matching_names("--shares", SHARES, options.shares)
    for start in options.starts:
        one_of("--starts", start, STARTS)
    attacks = matching_names("--attacks", ATTACKS, options.attacks) if options.attacks else []
    steps, restarts = (
        usual if asked is None else asked
        for asked, usual in zip((options.steps, options.restarts), BUDGETS[options.scale], strict=True)
    )
    pictures = None if options.pictures is None else str(options.pictures.resolve())
    settings = {"steps": steps, "restarts": restarts, "seed": options.seed}
    settings |= {"starts": list(options.starts), "pictures": pictures}
    cells = [(model, share, attack) for model in models for share in shares for attack in attacks or [NO_ATTACK]]
    units = [
        Unit.of(options, f"{m}/{s}/{a}/{image}", {"image": image, "model": m, "share": s, "attack": a, **settings})
        for m, s, a in cells
        for image in range(images)
        if attacks
    ]
    for m, s in [(model, share) for model in models for share in shares]:
        if m in DIGITS_MODELS or options.beside:
            count = images if m in DIGITS_MODELS else 1
            named = {"images": count, "model": m, "share": s, **settings}
            units.append(Unit.of(options, f"{m}/{s}/beside of {count}", named))
    shown = partial(page, cells=cells, images=images, settings=settings)
    Study(arguments(), [options.seed], settings, [units], work, shown).run(options)


def work(unit: Unit) -> list[Entry]:
    """One image's attack, or what stands beside a cell; a process of its own may run it."""
    settings = unit.settings
    if "images" in settings:
        return [beside(settings)]
    seen, images, _ = observed(settings, settings["image"])
    used = time.process_time()
    result = finished(fedsim.attack(_attack(settings), seen, seed=settings["seed"], device=unit.device))
    if result.images is None:
        return [{"image": settings["image"], "refused": result.reason}]
    error = float((result.images.double().cpu() - images).square().mean())
    return [
        {
            "image": settings["image"],
            "squared_error": error,
            "guess": float((images - _victims(settings).public().mean).square().mean()),
            "seconds": result.seconds,
            "cpu_seconds": time.process_time() - used,
            "peak_gib": getattr(peak_memory(), "cuda" if unit.device == "cuda" else "resident") / 2**30,
            "steps": result.certificate.values.get("steps", 0.0),
            "certified": result.certified,
        }
    ]


def _attack(settings: Mapping[str, Any]) -> Attack | str:
    name: str = settings["attack"]
    if not name.startswith("gauss_newton"):
        return name
    search = LevenbergMarquardt(steps=settings["steps"], restarts=settings["restarts"], starts=settings["starts"])
    return GaussNewton(search, budget=Budget(frames=0, save_every=0))


def observed(settings: Mapping[str, Any], image: int) -> tuple[Observation, Tensor, Tensor]:
    """What one client would share, its image in [0, 1] and the label."""
    source = _victims(settings)
    images, labels = source.images([image])
    defenses, seed = SHARES[settings["share"]].defenses(settings["model"]), settings["seed"] + image
    white = settings.get("attack", "").endswith("white")
    prior, held = (source.public().white(), None) if white else (source.public(), source.public_images())
    seen = victims.observed(settings["model"], defenses, images, labels, seed, prior, held)
    return seen, images, labels


def _victims(settings: Mapping[str, Any]) -> Victims:
    pictures = settings["pictures"]
    return Victims.of(settings["model"], None if pictures is None else Path(pictures))


def beside(settings: Mapping[str, Any]) -> Entry:
    """The references of a cell, and what rounding alone would leave of images that lose no direction."""
    if settings["model"] not in DIGITS_MODELS:
        return _beside_large(settings)
    each, facts, prior = [], [], public()
    for index in range(settings["images"]):
        jacobian, std, floor = linear(*observed(settings, index), prior)
        each.append(information(jacobian, std))
        facts.append(determined(jacobian, floor))
    whole = [one.rounding_psnr for one in facts if one.rank == one.unknowns]
    result: Entry = {"rank": min(one.rank for one in facts), "unknowns": facts[0].unknowns, "determined": len(whole)}
    known = whole and not SHARES[settings["share"]].coarse
    result |= {"rounding": median(whole), "least_rounding": min(whole)} if known else {"rounding": None}
    if not SHARES[settings["share"]].relative:
        return result | _references(prior, SHAPE, [])
    classes = [prior_precision(of_class(int(label)), SHAPE) for label in digits(range(len(each)))[1]]
    return result | _references(prior, SHAPE, each) | {"class_each": image_by_image(each, classes)}


def _beside_large(settings: Mapping[str, Any]) -> Entry:
    """The same of the first image by a sketch of J: references where noise is added, elsewhere what rounding leaves."""
    prior = _victims(settings).public()
    result: Entry = {"rank": None, "unknowns": math.prod(victims.LARGE), "rounding": None}
    seen, images, labels = observed(settings, 0)
    if not SHARES[settings["share"]].relative:
        found, rows = sketched(seen, images, labels, prior, torch.float64, rounding=True)
        return result | {"rounding": left_by_rounding(found, rows)} | _references(prior, victims.LARGE, [])
    found, rows = _curvature(settings["model"], settings["pictures"])
    std = noise_std(seen, labels, prior)
    return result | _references(prior, victims.LARGE, [found / std**2], rows)


@cache
def _curvature(model: str, pictures: str) -> tuple[Tensor, int]:
    """JᵀJ of the first image, which is the same behind noise of any size."""
    settings = {"model": model, "share": "everything", "pictures": pictures, "seed": 0}
    return sketched(*observed(settings, 0), _victims(settings).public(), torch.float32)


def _references(prior: PublicPrior, shape: Sequence[int], each: Sequence[Tensor], rows: int | None = None) -> Entry:
    """White, and with the spectrum of public images, and the same image by image; None where no noise is added.

    Image by image not by a sketch, which is of one image.
    """
    found: Entry = {}
    for name, one in {"white": prior.white(), "public": prior}.items():
        precision = prior_precision(one, shape) if each else None
        found[name] = None if precision is None else gaussian_reference(each, precision, rows)
        found[f"{name}_each"] = None if precision is None or rows else image_by_image(each, precision)
    return found | {"class_each": None}


def page(
    entries: Sequence[Mapping[str, Any]],
    cells: Sequence[tuple[str, str, str]],
    images: int,
    settings: Mapping[str, Any],
) -> Page:
    """One table: a row for each cell."""
    rows, record = [], []
    for model, share, attack in cells:
        named = (f"{model}/{share}/{attack}/", f"{model}/{share}/beside")
        values = cell([e for e in entries if e["unit"].startswith(named)])
        record.append([model, share, attack, *values.values()])
        shown = [number(values[name], ".1f") for name in ("floor", "median", "guess", *BESIDE[:6])]
        if values["refused"]:
            shown[0] = counted(shown[0], values["done"], images) if values["done"] else "refused"
        if values["least_rounding"] is not None:
            shown[-1] += f", least {values['least_rounding']:.1f}"
        if values["rounding"] is not None and values["determined"] not in (None, images):
            shown[-1] += f" ({values['determined']} of {images})"
        counts = [f"{values[name]} of {values['done']}" for name in ("recognisable", "exact")]
        spent = [number(values[name], form) for name, form in SPENT.items()]
        found = [*shown[:2], spread(values), *counts, str(values["certified"])]
        rows.append([MODELS[model], share, attack, *found, *shown[2:], *spent])
    header = ["model", "shared", "attack", "dB of the mean error", "median dB", "least / most", "recognisable"]
    header += [f"above {EXACT:.0f} dB", "certified", "a guess", "white reference", "public reference"]
    header += ["white, image by image", "public, image by image", "class, image by image"]
    header += ["rounding alone", "seconds", "of them on the CPU", "peak GiB"]
    names = ["model", "shared", "attack", *(cell([]))]
    introduction = (
        f"Attacks on the gradient of one image, {images} images a cell; `gauss_newton` takes {settings['steps']} steps "
        f"of each start ({', '.join(settings['starts'])}; {settings['restarts']} public images and draws). "
        "Floors are what these attacks reached, no more; the references are what second moments alone could give of "
        "Gaussian images, and no theorem on digits; what rounding alone would leave is a fact near the image, which "
        "proves no protection, in the median and for the least clear of the images that lose no direction (so many of "
        "all, where some do). "
        "Compare a reference with the dB of the mean error."
    )
    models = {model for model, _, _ in cells}
    differs = [
        f"Models are untrained, but for the one of {victims.TRAINING_STEPS} steps; labels are read off the update. "
        "`vit_nano` shares float32, ViT-Ti (two blocks, 32 px) float64 where its row does not say float32.",
        f"The guess is the mean of images that are nobody's ({DIGITS - PRIVATE} digits, or half of the folder's); so "
        f"is the prior of the attack, and images that it starts from. Of those the nearest to each private one, which "
        f"only the truth can tell, {_nearest(models, images, settings)}; the mean of those of its class, which the "
        f"label alone gives, {_of_its_class(models, images, settings)}.",
        "Image by image is what each image's own linearisation would leave, to first order and no bound: a reference "
        "averages the information of all images first, and lies above it where what is unclear differs between them. "
        "*Class* knows the mean and the spectrum of public digits of the image's class.",
        "`gauss_newton_white` knows of public images no more than the mean and a pixel's variance.",
        f"References of a folder's images (--beside) are of the first image alone, by a sketch of J with "
        f"{ROWS_EACH:.0f} rows a pixel.",
    ]
    table = Table("second_order", "Floors and references", header, rows, (names, record))
    return Page("second_order", "Second-order matching", introduction, [table], differs)


def _nearest(models: Set[str], images: int, settings: Mapping[str, Any]) -> str:
    """How near the nearest public image is, by the source of images."""
    found = []
    for source in {_victims({**settings, "model": model}) for model in models}:
        held = source.public_images()
        if held is not None:
            private = source.images(range(images))[0].flatten(1)
            apart = torch.cdist(private, held.images().double().flatten(1)).square() / private.shape[1]
            error = float(apart.min(dim=1).values.mean())
            named = "digits" if source.pictures is None else "pictures"
            found.append(f"is at {psnr_of(error):.1f} dB among {len(held)} {named}")
    return " and ".join(sorted(found)) or "is not known"


def _of_its_class(models: Set[str], images: int, settings: Mapping[str, Any]) -> str:
    """How near the mean of the public images of its class is, by the source of images."""
    found = []
    for source in {_victims({**settings, "model": model}) for model in models}:
        (private, labels), held = source.images(range(images)), source.public_images()
        if held is not None and held.labels is not None:
            means = [PublicPrior.of_class(held.images(), held.labels, int(label)).mean for label in labels]
            error = float((torch.stack(means) - private).square().mean())
            named = "digits" if source.pictures is None else "pictures"
            found.append(f"is at {psnr_of(error):.1f} dB for {named}")
    return " and ".join(sorted(found)) or "is not known"


def cell(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The numbers of a row; what it took only where one device computed all of it, for which all CPUs count as one."""
    done = [entry for entry in entries if "squared_error" in entry]
    beside_it = next((entry for entry in entries if "rank" in entry), {})
    errors = [entry["squared_error"] for entry in done]
    places = {entry.get("by", "").partition(" on ")[2] for entry in done}
    alike = len({"CPU" if place.endswith(" CPU cores") else place for place in places}) == 1
    decibels = [psnr_of(error) for error in errors]
    return {
        "floor": psnr_of(sum(errors) / len(errors)) if errors else None,
        "median": median(decibels) if decibels else None,
        "least": min(decibels, default=None),
        "most": max(decibels, default=None),
        "recognisable": sum(is_recognisable(psnr_of(e["squared_error"]), psnr_of(e["guess"])) for e in done),
        "exact": sum(value >= EXACT for value in decibels),
        "done": len(done),
        "refused": sum("refused" in entry for entry in entries),
        "certified": sum(entry["certified"] for entry in done),
        "guess": psnr_of(sum(e["guess"] for e in done) / len(done)) if done else None,
        **{name: beside_it.get(name) for name in BESIDE},
        **{name: mean(entry.get(name) for entry in done) if alike else None for name in SPENT},
    }


def spread(values: Mapping[str, Any]) -> str:
    """The least and the most dB of a row's images."""
    return "" if values["least"] is None else f"{values['least']:.1f} / {values['most']:.1f}"
