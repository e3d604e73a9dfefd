"""How far second-order matching gets, and what stands beside it. Its options are in `options`."""

import argparse
import math
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import fedsim
from attacks.optimization import Budget, GaussNewton, LevenbergMarquardt, Pixels
from attacks.optimization.problem import local_updates, make_problem, shared_update
from attacks.optimization.second_order.errors import autocast_of, rounding_of, unit_scale
from attacks.optimization.second_order.residual import make_residuals
from attacks.optimization.second_order.starts import STARTS
from attacks.positions import of_images
from defenses import QSGD, Defense, GradientNoise, Half, TopK, Withhold
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Page, Study, Table, Unit, check
from experiments.studies.second_order import victims
from experiments.studies.second_order.options import arguments
from experiments.studies.second_order.victims import DIGITS, DIGITS_MODELS, MODELS, PRIVATE, SHAPE, Victims, public
from fedsim.bounds.references import determined, gaussian_reference, information, prior_precision
from fedsim.errors import ConfigError, one_of
from fedsim.observation import Observation

READ = ["patch_embed.*", "pos_embed", "blocks.0.attn.qkv.*", "blocks.0.mlp.*"]
EXACT = 60.0
SPENT = {"seconds": ".0f", "cpu_seconds": ".0f", "peak_gib": ".1f"}
"""What an attack takes, and how it is shown; memory is the process's so far."""
BUDGETS = {"small": (30, 1), "paper": (60, 2)}
"""Steps of each start, and draws of the prior."""


@dataclass(frozen=True)
class Share:
    """What clients share; `relative`: the noise's norm over the gradient's; `kept`: of `topk`."""

    withheld: tuple[str, ...] = ()
    relative: float = 0.0
    compressed: str = ""
    kept: float = 0.1

    def defenses(self) -> list[Defense]:
        found: list[Defense] = [Withhold(list(self.withheld))] if self.withheld else []
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
    if not 1 <= images <= PRIVATE:
        raise ConfigError("--images", images, f"1 to {PRIVATE}")
    check(options)
    known = DIGITS_MODELS if options.pictures is None else MODELS
    models, shares = chosen("--models", options.models, known), chosen("--shares", options.shares, SHARES)
    for start in options.starts:
        one_of("--starts", start, STARTS)
    steps, restarts = BUDGETS[options.scale]
    pictures = None if options.pictures is None else str(options.pictures.resolve())
    settings = {"steps": steps, "restarts": restarts, "seed": options.seed}
    settings |= {"starts": list(options.starts), "pictures": pictures}
    cells = [(model, share) for model in models for share in shares]
    units = [
        Unit.of(options, f"{model}/{share}/{image}", {"image": image, "model": model, "share": share, **settings})
        for model, share in cells
        for image in range(images)
    ]
    units += [
        Unit.of(options, f"{m}/{s}/beside of {images}", {"images": images, "model": m, "share": s, **settings})
        for m, s in cells
        if m in DIGITS_MODELS
    ]
    shown = partial(page, cells=cells, images=images, settings=settings)
    Study(arguments(), [options.seed], settings, [units], work, shown).run(options)


def chosen(name: str, patterns: Sequence[str] | None, known: Mapping[str, object]) -> list[str]:
    result = [one for one in known if any(fnmatchcase(one, pattern) for pattern in patterns or ["*"])]
    if not result:
        raise ConfigError(name, " ".join(patterns or []), f"one of {', '.join(known)}")
    return result


def work(unit: Unit) -> list[Entry]:
    """One image's attack, or what stands beside a cell; a process of its own may run it."""
    settings = unit.settings
    if "images" in settings:
        return [beside(settings)]
    seen, images, _ = observed(settings, settings["image"])
    search = LevenbergMarquardt(steps=settings["steps"], restarts=settings["restarts"], starts=settings["starts"])
    attack = GaussNewton(search, budget=Budget(frames=0, save_every=0))
    used = time.process_time()
    result = fedsim.attack(attack, seen, seed=settings["seed"], device=unit.device)
    if result.status != "done" or result.images is None:
        return [{"image": settings["image"], "refused": result.reason}]
    error = float((result.images.double().cpu() - images).square().mean())
    certificate = result.certificate
    return [
        {
            "image": settings["image"],
            "squared_error": error,
            "guess": float((images - _victims(settings).public().mean).square().mean()),
            "seconds": result.seconds,
            "cpu_seconds": time.process_time() - used,
            "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            "steps": certificate.values["steps"] if certificate else 0.0,
            "certified": certificate is not None and certificate.status == "certified",
        }
    ]


def observed(settings: Mapping[str, Any], image: int) -> tuple[Observation, Tensor, Tensor]:
    """What one client would share, its image in [0, 1] and the label."""
    source = _victims(settings)
    images, labels = source.images([image])
    defenses, seed = SHARES[settings["share"]].defenses(), settings["seed"] + image
    seen = victims.observed(settings["model"], defenses, images, labels, seed, source.public())
    return seen, images, labels


def _victims(settings: Mapping[str, Any]) -> Victims:
    pictures = settings["pictures"]
    return Victims.of(settings["model"], None if pictures is None else Path(pictures))


def beside(settings: Mapping[str, Any]) -> Entry:
    """The references of a cell of digits, and what rounding alone would leave of its images, in the median."""
    each, rounding = [], []
    for index in range(settings["images"]):
        seen, images, labels = observed(settings, index)
        jacobian, std, floor = linear(seen, images, labels)
        if SHARES[settings["share"]].relative:
            each.append(information(jacobian, std))
        rounding.append(determined(jacobian, floor))
    result: Entry = {"rank": min(one.rank for one in rounding), "unknowns": rounding[0].unknowns}
    left = sorted(one.rounding_psnr for one in rounding)[len(rounding) // 2]
    result["rounding"] = left if math.isfinite(left) else None
    for name, prior in (("white", public().white()), ("public", public())):
        result[name] = gaussian_reference(each, prior_precision(prior, SHAPE)) if each else None
    return result


def linear(seen: Observation, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """J by pixels in [0, 1] at the images themselves, and the standard deviations of noise and of rounding."""
    cpu = torch.device("cpu")
    local = local_updates("auto", seen)
    target = of_images(seen, shared_update(seen, local, cpu))
    problem = make_problem(seen, target, labels, Pixels(), {}, cpu)
    residual = make_residuals(problem, local, public(), labels, cpu)[-1]
    x = seen.normalised(images).flatten()
    with sdpa_kernel(SDPBackend.MATH):
        J = residual.jacobian(x)[: len(residual.weights)] / residual.weights[:, None]
    std = torch.tensor(seen.std, dtype=torch.float64).repeat_interleave(images[0, 0].numel()).repeat(len(images))
    exact = {name: target[name].double() for name in residual.names}
    rounding = rounding_of(seen, exact, unit_scale(seen, local), local)
    precision = rounding, autocast_of(seen, exact)
    parts = (torch.hypot(*(one[name] for one in precision)).flatten() for name in residual.names)
    return J / std, 1.0 / residual.weights, torch.cat(list(parts)).clamp(min=1e-300)


def page(
    entries: Sequence[Mapping[str, Any]], cells: Sequence[tuple[str, str]], images: int, settings: Mapping[str, Any]
) -> Page:
    """One table: a row for each cell."""
    rows, record = [], []
    for model, share in cells:
        values = cell([e for e in entries if e["unit"].startswith(f"{model}/{share}/")])
        record.append([model, share, *values.values()])
        shown = [_db(values[name]) for name in ("floor", "median", "guess", "white", "public", "rounding")]
        exact = f"{values['exact']} of {values['done']}"
        spent = [f"{values[name]:{form}}" if values[name] is not None else "" for name, form in SPENT.items()]
        rows.append([MODELS[model], share, *shown[:2], exact, str(values["certified"]), *shown[2:], *spent])
    header = ["model", "shared", "dB of the mean error", "median dB", f"above {EXACT:.0f} dB", "certified", "a guess"]
    header += ["white reference", "public reference", "rounding alone", "seconds", "of them on the CPU", "peak GiB"]
    names = ["model", "shared", *(cell([]))]
    introduction = (
        f"`gauss_newton` on the gradient of one image, {images} images a cell, {settings['steps']} steps of each start "
        f"({', '.join(settings['starts'])}). Floors are what this search reached, no more; the references are what "
        f"second moments alone could give of Gaussian images, and no theorem on digits; what rounding alone would "
        f"leave is a fact near the image, which proves no protection. Compare a reference with the dB of the mean "
        f"error."
    )
    differs = [
        f"Models are untrained, but for the one of {victims.TRAINING_STEPS} steps; labels are read off the update. "
        "`vit_nano` shares float32, ViT-Ti (two blocks, 32 px) float64.",
        f"The guess is the mean of images that are nobody's ({DIGITS - PRIVATE} digits, or half of the folder's); so "
        f"is the prior of the attack.",
        "References need J whole: for digits alone.",
    ]
    table = Table("second_order", "Floors and references", header, rows, (names, record))
    return Page("second_order", "Second-order matching", introduction, [table], differs)


def cell(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The numbers of a row."""
    done = [entry for entry in entries if "squared_error" in entry]
    beside_it = next((entry for entry in entries if "rank" in entry), {})
    errors = sorted(entry["squared_error"] for entry in done)
    decibels = [_psnr(error) for error in errors]
    return {
        "floor": _psnr(sum(errors) / len(errors)) if errors else None,
        "median": decibels[len(errors) // 2] if errors else None,
        "exact": sum(value >= EXACT for value in decibels),
        "done": len(done),
        "certified": sum(entry["certified"] for entry in done),
        "guess": _psnr(sum(e["guess"] for e in done) / len(done)) if done else None,
        **{name: beside_it.get(name) for name in ("white", "public", "rounding", "rank", "unknowns")},
        **{name: _mean([entry[name] for entry in done if name in entry]) for name in SPENT},
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _psnr(squared_error: float) -> float:
    return -10.0 * math.log10(max(squared_error, 1e-30))


def _db(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
