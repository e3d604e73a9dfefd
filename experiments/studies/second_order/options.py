"""How far second-order matching gets, and what stands beside it, whatever is withheld or noisy.

Digits at `vit_nano`; with --pictures also a folder's images at ViT-Ti of 32 pixels, some minutes an image.

python -m experiments.studies.second_order --out DIR
python -m experiments.studies.second_order --out DIR --models built --shares everything 'noise *' --images 20
python -m experiments.studies.second_order --out DIR --pictures DIR --models 'vit_tiny*' --starts mean

For each cell: the floor that `gauss_newton` reaches, a guess without any gradient, the Gaussian reference where noise
is added, and what rounding alone would leave. The same command goes on where an earlier call stopped; more images,
models and shares may be asked for later.
"""

import argparse

from experiments.studies.harness.options import folder, parser


def arguments() -> argparse.ArgumentParser:
    options = parser(__doc__)
    options.add_argument("--pictures", type=folder, help="a folder of class folders, for vit_tiny_8, vit_tiny_4 …")
    models = "globs on built, stock, sincos, trained and, with --pictures, vit_tiny_8, vit_tiny_4, vit_tiny_8_sincos"
    options.add_argument("--models", nargs="+", help=f"{models}; default: all")
    starts = ["closed_form", "mean", "prior"]
    options.add_argument("--starts", nargs="+", default=starts, help=f"of the search; default: {' '.join(starts)}")
    options.add_argument("--shares", nargs="+", help="globs on what is shared; default: all")
    options.add_argument("--images", type=int, help="of each cell; default: 3, or 20 with --scale paper")
    return options
