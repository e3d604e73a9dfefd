"""One client seen again and again behind noise: what is left of its image after 1, 2, 5 … rounds.

python -m experiments.studies.rounds --out DIR
python -m experiments.studies.rounds --out DIR --images 10 --rounds 1 10 100

Digits at `vit_nano`, one image, whose client adds noise of 1e-2 of the norm to each gradient; between the rounds others
train the model. `gauss_newton` reads all rounds together (`fedsim.History`), and beside it stands the Gaussian
reference of the same rounds. The same command goes on where an earlier call stopped.
"""

import argparse

from experiments.studies.harness.options import parser


def arguments() -> argparse.ArgumentParser:
    options = parser(__doc__, seeds=False)
    options.add_argument("--images", type=int, help="digits; default: 3, or 10 with --scale paper")
    options.add_argument("--rounds", type=int, nargs="+", help="numbers of rounds; default: 1 2 5 10, or to 100")
    return options
