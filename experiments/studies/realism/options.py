"""From one picture at initial weights, where everything leaks, to training as people do it, rung by rung.

python -m experiments.studies.realism --out DIR
python -m experiments.studies.realism --out DIR --pictures DIR --images 3
python -m experiments.studies.realism --out DIR --rungs '*trained*' 'alone: batch*'

Digits at `vit_nano`, or with --pictures a folder of class folders, at 32 pixels. For each rung: what closed forms, a
second-order and a first-order search and label rules reach, the guesses without any gradient, and the reference where
there is one. A model for the rungs of trained weights is trained once and kept in the folder. The same command goes on
where an earlier call stopped; more images and rungs may be asked for later.
"""

import argparse

from experiments.studies.harness.options import folder, parser


def arguments() -> argparse.ArgumentParser:
    options = parser(__doc__, seeds=False)
    options.add_argument("--pictures", type=folder, help="a folder of class folders; default: digits")
    options.add_argument("--rungs", nargs="+", help="globs on the names of rungs; default: all")
    options.add_argument("--images", type=int, help="at least so many a rung; default: 8, or 3 with --pictures")
    return options
