"""How far second-order matching gets, and what stands beside it, whatever is withheld or noisy.

Digits at `vit_nano`; with --pictures also a folder's images at ViT-Ti of 32 pixels, some minutes an image.

python -m experiments.studies.second_order --out DIR
python -m experiments.studies.second_order --out DIR --models built --shares everything 'noise *' --images 20
python -m experiments.studies.second_order --out DIR --models built stock --images 20 --attacks
python -m experiments.studies.second_order --out DIR --pictures DIR --models 'vit_tiny*' --starts mean
python -m experiments.studies.second_order --out DIR --pictures DIR --models 'vit_tiny_8*' --starts public --restarts 1
python -m experiments.studies.second_order --out DIR --pictures DIR --models 'vit_tiny_8*' --attacks first_block

For each cell: the floor that `gauss_newton` reaches, a guess without any gradient, the Gaussian reference where noise
is added, and what rounding alone would leave. The same command goes on where an earlier call stopped; more images,
models and shares may be asked for later.
"""

import argparse

from experiments.studies.harness.options import folder, parser


def arguments() -> argparse.ArgumentParser:
    options = parser(__doc__, seeds=False)
    options.add_argument("--pictures", type=folder, help="a folder of class folders, for vit_tiny_8, vit_tiny_4 …")
    models = "globs on built, stock, sincos, trained and, with --pictures, vit_tiny_8 and vit_tiny_4"
    more = "the same with _sincos, with _float32, with both"
    options.add_argument("--models", nargs="+", help=f"{models}, and {more}; default: all")
    attacks = "globs on patch_gradient, row_space, first_block, gauss_newton, gauss_newton_white"
    told = "the last knows of public images no more than mean and variance"
    options.add_argument(
        "--attacks",
        nargs="*",
        default=["gauss_newton"],
        help=f"{attacks}; {told}; none: what stands beside them alone; default: gauss_newton",
    )
    starts = ["closed_form", "public", "mean", "prior"]
    options.add_argument("--starts", nargs="+", default=starts, help=f"of the search; default: {' '.join(starts)}")
    options.add_argument("--steps", type=int, help="of each start; default: 30, or 60 with --scale paper")
    options.add_argument(
        "--restarts", type=int, help="public images and draws that are tried; default: 3, or 4 with --scale paper"
    )
    options.add_argument("--beside", action="store_true", help="references of a folder's first image too: minutes each")
    options.add_argument("--shares", nargs="+", help="globs on what is shared; default: all")
    options.add_argument("--images", type=int, help="of each cell; default: 3, or 20 with --scale paper")
    return options
