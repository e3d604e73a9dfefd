"""MJP's Tables 3, 4, 6 and 8 and its figures of trained models (Ren et al. 2023), by one command.

python -m experiments.studies.mjp_training --pictures DIR --out DIR
python -m experiments.studies.mjp_training --pictures DIR --out DIR --scale paper --device cuda --workers 1
python -m experiments.studies.mjp_training --pictures DIR --out DIR --variants A J 'J@*' --seeds 3
python -m experiments.studies.mjp_training --pictures DIR --out DIR --variants A I J --recipes plain both

Every model is trained in a federation and measured by the code of `fedsim-measure`; its run stays below
`OUT/runs`. The same command goes on where an earlier call stopped, in the middle of a training too; more variants,
recipes and seeds may be asked for later. Figures of attention maps show pictures of DIR.

Without recipes the server takes the step of all clients' one batch, as the paper's training does. With recipes models
are trained by FedAvg once by each, and compared seed by seed: `plain` takes images as they are at a constant learning
rate; `augment` crops and flips them, `cosine` warms up and decays the rate over all rounds, `both` does both. Runs of
one seed share initial weights, partitions and the order of batches.
"""

import argparse

from experiments.studies.harness.options import parser


def arguments() -> argparse.ArgumentParser:
    options = parser(__doc__, "folder of class folders, or train/ and val/ that hold one folder per class")
    options.add_argument("--variants", nargs="+", help="globs on A to J (Table 4) and J@RATIO (Table 3); default: all")
    options.add_argument("--recipes", nargs="+", help="globs on plain, augment, cosine, both; default: no FedAvg")
    return options
