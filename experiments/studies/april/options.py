"""APRIL (Lu et al. 2022): its closed form, its optimisation, twin data, and its defense, by one command.

python -m experiments.studies.april --pictures DIR --out DIR
python -m experiments.studies.april --data photos --parts fixed_pe --out DIR      no pictures of your own
python -m experiments.studies.april --pictures DIR --out DIR --scale paper --device cuda --workers 2

closed_form  the closed form on its own architecture by size of the grid, patch_gradient and row_space on stock models
curves       gradient matching: plain, aligned as published, over the patch rows, row by row
twins        plain matching where the position embedding's gradient is withheld, beside the same where it is shared
fixed_pe     a position embedding that is never trained, against published attacks and against row_space

Each picture is one client's batch of one, its gradient taken by the client's own code on a model as it is initialised.
Seeds draw the model and where searches start; the pictures stay. Beside every attack stands what one has without any
gradient. The same command goes on where an earlier call stopped; parts and seeds may be asked for later.
"""

import argparse

from experiments.studies.harness.options import folder, parser

CLOSED_FORM, CURVES, TWINS, FIXED_PE = "closed_form", "curves", "twins", "fixed_pe"
PARTS = (CLOSED_FORM, CURVES, TWINS, FIXED_PE)


def arguments() -> argparse.ArgumentParser:
    options = parser(__doc__)
    options.add_argument(
        "--pictures", type=folder, help="folder with one folder of pictures per class; needed for --data folder"
    )
    options.add_argument(
        "--data", choices=("folder", "photos"), default="folder", help="photos: crops of scikit-learn's two photographs"
    )
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    options.add_argument("--count", type=int, help="pictures of each part, at most; default: those of the scale")
    options.add_argument("--steps", type=int, help="of the searches; default: those of the scale")
    return options
