"""What a federation learns by each recipe of fine-tuning, and what it costs: pictures of a folder, one public model.

python -m experiments.studies.finetune_accuracy --pictures DIR --out DIR
python -m experiments.studies.finetune_accuracy --pictures DIR --out DIR --recipes full 'lora*' --seeds 5
python -m experiments.studies.finetune_accuracy --pictures DIR --out DIR --attacked 2

Half of the classes make a public model (`OUT/pretrained.safetensors`), clients hold the others. Each recipe's learning
rate is chosen on training pictures that are held out, with a seed of its own; then every recipe starts from the same
model with each seed, and is compared with `full` seed by seed. The same command goes on where an earlier call stopped,
in the middle of a training too; more recipes, seeds and attacked pictures may be asked for later.
"""

import argparse

from experiments.studies.harness.options import parser


def arguments() -> argparse.ArgumentParser:
    options = parser(__doc__, "folder with train/ and val/ that hold one folder per class, the same in both")
    options.add_argument("--recipes", nargs="+", help="globs on recipes; default: all. full is always run")
    options.add_argument("--attacked", type=int, default=0, help="pictures of clients that are attacked, one an update")
    return options
