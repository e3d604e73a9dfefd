"""MJP's Tables 3, 4, 6 and 8 and its figures of trained models (Ren et al. 2023), by one command.

Its options are in `options`.
"""

import argparse
from collections.abc import Sequence

from experiments.studies.harness.federation import run_folder
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Page, Study, Unit, seeds
from experiments.studies.mjp_training.figures import draw, other_projection
from experiments.studies.mjp_training.options import arguments
from experiments.studies.mjp_training.scales import SCALES, TrainingScale
from experiments.studies.mjp_training.tables import Measured, Record, tables
from experiments.studies.mjp_training.unit import run_unit
from experiments.studies.mjp_training.variants import Variant, choose, plan
from fedsim.settings.composition import Config

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
    """From settings to the page.

    Raises:
        ConfigError: a setting cannot work.
        RunError: a unit failed.
    """
    scale = SCALES[options.scale]
    drawn = seeds(options, scale.seeds)
    every = plan(scale.ratio)
    variants = choose(every, options.variants)
    training = scale.training(options.pictures.resolve(), options.device, options.threads)
    measuring = scale.measuring(options.seed, options.device)
    defenses = scale.defenses(every)
    todo = units(variants, drawn, scale, training, measuring, options)
    settings = {"ratio": scale.ratio, "defenses": defenses, "training": training, "measure": measuring}

    def page(entries: list[Entry]) -> Page:
        measured = Measured(scale, variants, by_variant(variants, drawn, entries))
        made, said = tables(measured)
        folders = {variant.name: run_folder(options.out, key_of(variant, drawn[0])) for variant in variants}
        figures = draw(measured, folders, measuring, options.out)
        differs = [*said, *missing(measured), *scale.differs, *ALWAYS, *projections()]
        introduction = INTRODUCTION.format(headline=scale.headline, pictures=entries[0]["pictures"])
        return Page("mjp_training", TITLE, introduction, made, differs, figures)

    Study(arguments(), drawn, settings, [todo], run_unit, page).run(options)


def units(
    variants: Sequence[Variant],
    drawn: Sequence[int],
    scale: TrainingScale,
    training: Config,
    measuring: Config,
    options: argparse.Namespace,
) -> list[Unit]:
    """Each variant once with each seed; all are shown the same masks. Needs Hydra's search path."""
    return [
        Unit.of(
            options,
            key_of(variant, seed),
            {"run": scale.defended(training, variant, seed), "measure": measuring, "name": variant.name},
        )
        for seed in drawn
        for variant in variants
    ]


def key_of(variant: Variant, seed: int) -> str:
    """The name of a unit and of its folder."""
    return f"{variant.name}-{seed}"


def by_variant(variants: Sequence[Variant], drawn: Sequence[int], entries: Sequence[Record]) -> dict[str, list[Record]]:
    """Records of each variant in the order of the seeds."""
    known = {record["unit"]: record for record in entries}
    return {variant.name: [known[key_of(variant, seed)] for seed in drawn] for variant in variants}


def missing(measured: Measured) -> list[str]:
    """What was not trained."""
    absent = [variant.name for variant in plan(measured.scale.ratio) if variant.name not in measured.records]
    return [f"Not trained: {', '.join(absent)}."] if absent else []


def projections() -> list[str]:
    """Where the figures' projection is not the paper's."""
    return ["UMAP is not installed: t-SNE is drawn beside PCA."] if other_projection() == "tsne" else []
