"""MJP's Tables 3, 4, 6 and 8 and its figures of trained models (Ren et al. 2023), by one command.

Its options are in `options`.
"""

import argparse
from pathlib import Path

from experiments.studies.harness.federation import run_folder
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.options import matching, matching_names
from experiments.studies.harness.study import Page, Study, Unit, seeds
from experiments.studies.mjp_training.figures import draw, draw_recipes, other_projection
from experiments.studies.mjp_training.options import arguments
from experiments.studies.mjp_training.recipes import page as recipes_page
from experiments.studies.mjp_training.scales import RECIPE_SCALES, SCALES, FedAvgScale
from experiments.studies.mjp_training.tables import Measured, compared, tables
from experiments.studies.mjp_training.unit import run_unit
from experiments.studies.mjp_training.variants import Variant, plan
from fedsim.settings.composition import Config

FIGURE = "figures/recipes.png"
TITLE = "MJP: Tables 3, 4, 6 and 8, and figures of trained models"

INTRODUCTION = (
    "What training with masked, shuffled patches does to a model: its accuracy, how far its prediction moves when test "
    "pictures are jigsawed, and what its position embeddings reveal. Top-1 is for whole pictures. Diff. Norm. and "
    "Consistency compare x with x̃ at the mask ratios in the column heads. The paper's numbers stand beside ratio "
    "{headline:g}, that of its released evaluation script; the ratio of its tables is not known. ± is the standard "
    "deviation over seeds. Test pictures: {pictures}."
)

ALWAYS = (
    "Table 3's ratio 0 is variant D, the regression alone: the paper's numbers of both are the same (80.0 and 64.0 %), "
    "those of A are others (79.8 and 64.3 %). Likewise its ratio 0.03 is variant J.",
    "Each picture has its own mask and permutation here, in the authors' code a batch shares one.",
    "Figures 3, 4 and 5 of the paper were not available for comparison. Here are masks at the ratios of Table 3 and "
    "curves over the ratio; for recoveries see `mjp_table5`.",
)


def run(options: argparse.Namespace) -> None:
    """From settings to the page."""
    scale = RECIPE_SCALES[options.scale] if options.recipes else SCALES[options.scale]
    drawn = seeds(options, scale.seeds)
    every = plan(scale.ratio)
    variants = matching("--variants", every, options.variants)
    trainings = scale.trainings(options.pictures.resolve(), options.device, options.threads)
    recipes = matching_names("--recipes", trainings, options.recipes)
    measuring = scale.measuring(options.seed, options.device)
    settings = {"ratio": scale.ratio, "defenses": scale.defenses(every), "measure": measuring}
    settings |= {"trainings": trainings} if options.recipes else {"training": trainings[""]}
    # All are shown the same masks.
    todo = [
        Unit.of(
            options,
            key_of(variant, recipe, seed),
            {"run": scale.defended(trainings[recipe], variant, seed), "measure": measuring, "name": variant.name},
        )
        for seed in drawn
        for variant in variants
        for recipe in recipes
    ]

    def page(entries: list[Entry]) -> Page:
        known = {entry["unit"]: entry for entry in entries}
        measured = {
            recipe: Measured(
                scale,
                variants,
                {variant.name: [known[key_of(variant, recipe, seed)] for seed in drawn] for variant in variants},
            )
            for recipe in recipes
        }
        if isinstance(scale, FedAvgScale):
            columns = compared(scale)
            draw_recipes(measured, columns, options.out / FIGURE)
            caption = f"{', '.join(column.title for column in columns)}: a point for each seed, a bar at their mean"
            return recipes_page(scale, measured, len(drawn), {FIGURE: caption})
        return single_page(measured[""], drawn[0], measuring, options.out)

    Study(arguments(), drawn, settings, [todo], run_unit, page).run(options)


def single_page(measured: Measured, seed: int, measuring: Config, out: Path) -> Page:
    """All tables, what their orders say, and the figures of the first seed's models."""
    scale = measured.scale
    made, said = tables(measured)
    folders = {variant.name: run_folder(out, key_of(variant, "", seed)) for variant in measured.variants}
    figures = draw(measured, folders, measuring, out)
    differs = [*said, *missing(measured), *scale.differs, *ALWAYS, *projections()]
    pictures = next(iter(measured.records.values()))[0]["pictures"]
    introduction = INTRODUCTION.format(headline=scale.headline, pictures=pictures)
    return Page("mjp_training", TITLE, introduction, made, differs, figures)


def key_of(variant: Variant, recipe: str, seed: int) -> str:
    """The name of a unit and of its folder."""
    return "-".join(filter(None, (variant.name, recipe, str(seed))))


def missing(measured: Measured) -> list[str]:
    """What was not trained."""
    absent = [variant.name for variant in plan(measured.scale.ratio) if variant.name not in measured.records]
    return [f"Not trained: {', '.join(absent)}."] if absent else []


def projections() -> list[str]:
    """Where the figures' projection is not the paper's."""
    return ["UMAP is not installed: t-SNE is drawn beside PCA."] if other_projection() == "tsne" else []
