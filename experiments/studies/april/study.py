"""APRIL (Lu et al. 2022): its closed form, its optimisation, twin data, and its defense, by one command.

Its options are in `options`.
"""

import argparse
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from experiments.studies.april.figures import draw_curves, draw_fixed, draw_twins
from experiments.studies.april.options import CURVES, FIXED_PE, PARTS, TWINS, arguments
from experiments.studies.april.plan import SCALES, plan, search, steps_of
from experiments.studies.april.tables import tables, verdicts
from experiments.studies.april.work import work
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Page, Study, seeds
from experiments.studies.harness.victims import presets
from fedsim.errors import ConfigError

FIGURES = {
    CURVES: (
        draw_curves,
        "PSNR and matching loss over the steps: mean of PSNR, geometric mean of the loss, and the 10th to the 90th "
        "percentile",
    ),
    TWINS: (
        draw_twins,
        "Clients' pictures and what searches make of them; loss on all tensors but ∂L/∂E_pos",
    ),
    FIXED_PE: (draw_fixed, "Behind a fixed position embedding: original, published attack, ours, and a guess"),
}

INTRODUCTION = (
    "Lu et al. 2022 rebuild an image from a vision transformer's gradient: in closed form where the first attention "
    "reads the embedding directly, otherwise by a search that aligns the position embedding's gradient. Without that "
    "gradient, they say, searches end at “twin data”, so a fixed position embedding protects. Means over images, "
    "PSNR in dB, ± over seeds."
)
DIFFERS = (
    "The paper's optimiser, steps and α were not available. Ours are signed Adam, 0.1 with a cosine, total variation, "
    "α = {alpha:g} in units of the gradient's squared norm. The comparison therefore tests the paper's claims, not its "
    "numbers.",
    "Total variation has one weight relative to the matching term in all arms of ours: {tv:g} beside 1 + α where the "
    "search aligns, {plain:.2g} beside 1 where it does not. Inverting Gradients keeps the objective and the weight of "
    "its own file.",
    "The models are untrained; the paper's architectures are not timm's.",
    "The closed form is exact where tokens and pixels of a patch are at most the width, and badly conditioned: float32 "
    "gradients lose most of its digits. Where a patch has more pixels, its second step has no exact solution. Stock "
    "models have a norm before the first attention, where the formula does not hold: refused.",
    "The loss is ‖g − g′‖²/‖g′‖² for all searches, whatever each of them minimises; for twin data it is over the same "
    "tensors in all arms, all but ∂L/∂E_pos.",
    "A fixed sin-cos embedding spans so few dimensions that row_space has too few equations; one fixed at its initial "
    "values spans as many as there are patches. The paper does not distinguish them.",
)


def run(options: argparse.Namespace) -> None:
    """From settings to the page, its tables and its figures."""
    if options.data == "folder" and options.pictures is None:
        raise ConfigError("--pictures", None, "a folder of class folders, or --data photos")
    drawn = seeds(options, SCALES[options.scale].seeds)
    shown = partial(page, options)
    Study(arguments(), drawn, _settings(options), [plan(options, drawn)], work, shown).run(options)


def page(options: argparse.Namespace, entries: list[Entry]) -> Page:
    """The page of the parts that were asked for; draws their figures."""
    parts = [part for part in PARTS if part in options.parts]
    for part in parts:
        if part in FIGURES:
            FIGURES[part][0](entries, options.out / f"{part}.png")
    figures = {f"{part}.png": text for part, (_, text) in FIGURES.items() if part in parts}
    differs = [*verdicts(entries, parts), *_differs()]
    return Page("april", "APRIL, reproduced", INTRODUCTION, tables(entries, parts), differs, figures)


def _settings(options: argparse.Namespace) -> dict[str, object]:
    """What results depend on besides the keys of their units."""
    return {
        "data": str(options.pictures.resolve()) if options.data == "folder" else options.data,
        "scale": asdict(replace(SCALES[options.scale], seeds=0)),
        "pictures from seed": options.seed,
        "count": options.count,
        "steps": dict(steps_of(options)),
        "attacks": _attacks(),
    }


def _attacks() -> dict[str, Any]:
    """As their files have them, and the plain search that is made of one."""
    found = presets("april", "april_optimization", "inverting_gradients", "patch_gradient", "row_space")
    return {**found, "plain": search({"attack": found}, None, 0, 0)}


def _differs() -> list[str]:
    attacks = _attacks()
    weights = [attacks[name]["priors"]["total_variation"]["weight"] for name in ("april_optimization", "plain")]
    alpha = attacks["april_optimization"]["objective"]["alpha"]
    first, second, *rest = DIFFERS
    return [first.format(alpha=alpha), second.format(tv=weights[0], plain=weights[1]), *rest]
