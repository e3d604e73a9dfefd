"""How far second-order matching gets, and what stands beside it: digits, `vit_nano`, whatever is withheld or noisy.

python -m experiments.studies.second_order --out DIR
python -m experiments.studies.second_order --out DIR --models built --shares everything 'noise *' --images 20

For each cell: the floor that `gauss_newton` reaches, a guess without any gradient, the Gaussian reference where noise
is added, and what rounding alone would leave. The same command goes on where an earlier call stopped; more images,
models and shares may be asked for later.
"""

import argparse

from experiments.studies.harness.options import parser


def arguments() -> argparse.ArgumentParser:
    options = parser(__doc__)
    options.add_argument("--models", nargs="+", help="globs on built, stock, sincos; default: all")
    options.add_argument("--shares", nargs="+", help="globs on what is shared; default: all")
    options.add_argument("--images", type=int, help="digits; default: 3, or 20 with --scale paper")
    return options
