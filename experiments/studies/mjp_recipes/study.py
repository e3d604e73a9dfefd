"""MJP's tables (Ren et al. 2023) of models that FedAvg trained by several recipes. Its options are in `options`."""

import argparse
from collections.abc import Mapping, Sequence

from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Page, Study, Unit, seeds
from experiments.studies.mjp_recipes.figure import draw
from experiments.studies.mjp_recipes.measures import compared
from experiments.studies.mjp_recipes.options import arguments
from experiments.studies.mjp_recipes.scales import RECIPES, SCALES, FedAvgScale
from experiments.studies.mjp_recipes.tables import page
from experiments.studies.mjp_training.tables import Measured
from experiments.studies.mjp_training.unit import run_unit
from experiments.studies.mjp_training.variants import Variant, choose, plan
from experiments.studies.second_order.study import chosen
from fedsim.settings.composition import Config

FIGURE = "figures/recipes.png"


def run(options: argparse.Namespace) -> None:
    """From settings to the page.

    Raises:
        ConfigError: a setting cannot work.
        RunError: a unit failed.
    """
    scale = SCALES[options.scale]
    drawn = seeds(options, scale.seeds)
    every = plan(scale.ratio)
    variants, recipes = choose(every, options.variants), chosen("--recipes", options.recipes, RECIPES)
    trainings = scale.trainings(options.pictures.resolve(), options.device, options.threads)
    measuring = scale.measuring(options.seed, options.device)
    settings = {
        "ratio": scale.ratio,
        "defenses": scale.defenses(every),
        "trainings": trainings,
        "measure": measuring,
    }
    todo = units(variants, {recipe: trainings[recipe] for recipe in recipes}, drawn, scale, measuring, options)

    def shown(entries: list[Entry]) -> Page:
        known = {entry["unit"]: entry for entry in entries}
        measured = {
            recipe: Measured(
                scale,
                variants,
                {variant.name: [known[key_of(variant, recipe, seed)] for seed in drawn] for variant in variants},
            )
            for recipe in recipes
        }
        columns = compared(scale)
        draw(measured, columns, options.out / FIGURE)
        caption = f"{', '.join(column.title for column in columns)}: a point for each seed, a bar at their mean"
        return page(scale, measured, len(drawn), {FIGURE: caption})

    Study(arguments(), drawn, settings, [todo], run_unit, shown).run(options)


def units(
    variants: Sequence[Variant],
    trainings: Mapping[str, Config],
    drawn: Sequence[int],
    scale: FedAvgScale,
    measuring: Config,
    options: argparse.Namespace,
) -> list[Unit]:
    """Each variant once by each recipe with each seed; all are shown the same masks. Needs Hydra's search path."""
    return [
        Unit.of(
            options,
            key_of(variant, recipe, seed),
            {"run": scale.defended(training, variant, seed), "measure": measuring, "name": variant.name},
        )
        for seed in drawn
        for variant in variants
        for recipe, training in trainings.items()
    ]


def key_of(variant: Variant, recipe: str, seed: int) -> str:
    """The name of a unit and of its folder."""
    return f"{variant.name}-{recipe}-{seed}"
