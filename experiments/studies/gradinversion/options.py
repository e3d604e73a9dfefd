"""GradInversion (Yin et al. 2021): which labels a batch's gradient tells, and what each prior adds, by one command.

python -m experiments.studies.gradinversion --pictures DIR --out DIR
python -m experiments.studies.gradinversion --pictures DIR --out DIR --scale paper --checkpoint FILE --device cuda

Labels: every rule on the head's gradient of the same batches, distinct labels and repeated ones. Features are computed
once in evaluation mode, as the paper's pretrained network is used; a batch's gradient follows from them in closed form.
Ablation: gradient matching alone, with smoothness, with BatchNorm statistics too (the fidelity priors), with the lazy
group, with the registered one; all from the same candidates, beside the same search for a random gradient and the mean
public picture. Without --checkpoint the network is first trained on the public half of the pictures.
"""

import argparse

from experiments.studies.harness.options import folder, parser


def arguments() -> argparse.ArgumentParser:
    options = parser(__doc__, "folder with one folder of pictures per class")
    options.add_argument("--checkpoint", type=folder, help="trained weights of the network; default: train it first")
    return options
