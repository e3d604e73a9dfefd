"""MJP's tables (Ren et al. 2023) of models that FedAvg trained by several recipes, seed by seed.

python -m experiments.studies.mjp_recipes --pictures DIR --out DIR --variants A I J
python -m experiments.studies.mjp_recipes --pictures DIR --out DIR --variants A J --recipes plain cosine augment both

`plain` takes images as they are at a constant learning rate; `augment` crops and flips them, `cosine` warms up and
decays the rate over all rounds, `both` does both. Runs of one seed share initial weights, partitions and the order of
batches. The same command goes on where an earlier call stopped, in the middle of a training too; more variants,
recipes and seeds may be asked for later.
"""

import argparse

from experiments.studies.harness.options import parser

RECIPES = ("plain", "both")
"""Those that are compared where none are named."""


def arguments() -> argparse.ArgumentParser:
    options = parser(__doc__, "folder of class folders, or train/ and val/ that hold one folder per class")
    options.add_argument("--variants", nargs="+", help="globs on A to J (Table 4) and J@RATIO (Table 3); default: all")
    options.add_argument(
        "--recipes", nargs="+", default=list(RECIPES), help="globs on plain, augment, cosine, both; default: plain both"
    )
    return options
