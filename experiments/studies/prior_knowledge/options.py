"""Gradient inversion seen by its prior knowledge (a blog post): an MLP's gradient without any prior, by one command.

python -m experiments.studies.prior_knowledge --pictures DIR --out DIR
python -m experiments.studies.prior_knowledge --pictures DIR --out DIR --scale paper --device cuda

One picture of known label: L2 and cosine matching without priors, and the fully connected layer's closed form. Then
larger batches, in which information is lost, and the problem that the post leaves open: samples that share a label.
There each method also says what it certifies, on the MLP and for pairs of pictures on a small ViT.
"""

import argparse

from experiments.studies.harness.options import parser


def arguments() -> argparse.ArgumentParser:
    return parser(__doc__, "folder with one folder of pictures per class")
