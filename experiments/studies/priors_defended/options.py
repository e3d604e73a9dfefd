"""Do defenses stop LTI (Wu et al. 2023) and GGL (Li et al. 2022)? Their papers' defenses, by one command.

python -m experiments.studies.priors_defended --pictures DIR --out DIR --held cat,ship
python -m experiments.studies.priors_defended --pictures DIR --out DIR --batches 4 --defenses none noise --generators
python -m experiments.studies.priors_defended --pictures DIR --out DIR --scale paper --device cuda

LTI's network is trained on public pictures through the very defense that clients use; GGL searches the latent of one
generator for all defenses. Both are trained without the classes held out, whose pictures are attacked, beside free
pixels and what each prior gives without any gradient.
"""

import argparse

from experiments.studies.harness.options import parser

DEFENSES = {
    "none": ["defense=[]"],
    "noise": ["defense=[gradient_noise]", "defense.gradient_noise.relative_norm=0.1"],
    "topk": ["defense=[topk]", "defense.topk.ratio=0.1", "defense.topk.error_feedback=false"],
    "sign": ["defense=[sign]", "defense.sign.scale=none", "defense.sign.error_feedback=false"],
    "prune": ["defense=[topk]", "defense.topk.ratio=0.01", "defense.topk.error_feedback=false"],
    "gauss": [
        "defense=[gradient_noise]",
        "defense.gradient_noise.std=0.1",
        "defense.gradient_noise.relative_norm=null",
    ],
    "clip": ["defense=[gradient_clip]", "defense.gradient_clip.max_norm=4.0"],
    "soteria": ["defense=[soteria]", "defense.soteria.prune_rate=0.8"],
}
"""`noise` of a tenth of the update's norm, `gauss` of 0.1 in each entry; `topk` keeps 10 %, `prune` 1 %."""
PAPERS = {
    "none": "LTI, GGL",
    "sign": "LTI",
    "prune": "LTI",
    "gauss": "LTI, GGL",
    "clip": "GGL",
    "topk": "GGL",
    "soteria": "GGL",
}
"""Which paper tests a defense."""

FREE = "inverting_gradients"
ATTACKS = ("lti_mean", "generator_samples", FREE, "ggl", "lti")
GENERATORS = ("gias", "gifd")
"""Searches of a generator by gradients."""


def arguments() -> argparse.ArgumentParser:
    options = parser(__doc__, "folder with one folder of pictures per class")
    options.add_argument("--held", default="cat,ship", help="classes whose pictures are attacked; no prior learns them")
    options.add_argument("--model", default="lenet_dlg", help="of conf/model; the papers: LeNet (LTI), ResNet-18 (GGL)")
    options.add_argument("--defenses", nargs="+", choices=DEFENSES, default=list(PAPERS), help="default: the papers'")
    options.add_argument("--batches", nargs="+", type=int, help="pictures of an update; default: those of the scale")
    options.add_argument("--generators", action="store_true", help="GIAS and GIFD, too")
    return options
