"""What is left of images in updates of fine-tuning, one gradient each.

Digits at `vit_nano`; with --pictures instead a folder's images of 32 pixels, some minutes an image.

python -m experiments.studies.finetune --out DIR
python -m experiments.studies.finetune --out DIR --backbones trained --recipes head 'lora *' --images 8
python -m experiments.studies.finetune --out DIR --backbones drawn --recipes full 'lora *' --images 6 --batches 1 2 4
python -m experiments.studies.finetune --out DIR --pictures DIR --model vit_nano --recipes 'lora *' --images 1

For each recipe, and for low-rank factors and adapters by the round: the floor that `gauss_newton` reaches, a guess
without any gradient, how many directions of its images the update holds, and what rounding alone would leave. The same
command goes on where an earlier call stopped; more images, recipes and batches may be asked for later.
"""

import argparse

from experiments.studies.harness.options import folder, parser

PICTURES_MODELS = {"vit_tiny": "ViT-Ti/8 of two blocks", "vit_nano": "`vit_nano`"}


def arguments() -> argparse.ArgumentParser:
    options = parser(__doc__, seeds=False)
    options.add_argument("--pictures", type=folder, help="a folder of class folders, in place of digits")
    choices = f"{' or '.join(PICTURES_MODELS)}, both in patches of 8; default: %(default)s"
    options.add_argument("--model", default="vit_tiny", metavar="MODEL", help=f"of --pictures: {choices}")
    options.add_argument("--backbones", nargs="+", help="globs on drawn, trained; default: both")
    options.add_argument("--recipes", nargs="+", help="globs on recipes and rounds; default: all")
    options.add_argument("--images", type=int, help="of each cell; default: 3, or 8 with --scale paper")
    options.add_argument("--batches", nargs="+", type=int, default=[1], help="images of an update")
    starts = ["closed_form", "public", "mean", "prior"]
    options.add_argument("--starts", nargs="+", default=starts, help=f"of the search; default: {' '.join(starts)}")
    return options
