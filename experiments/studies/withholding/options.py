"""The smallest set of tensors whose withholding stops every closed form, and what it costs.

python -m experiments.studies.withholding --out DIR                                     digits, the embedded ViT
python -m experiments.studies.withholding --out DIR --model vit_tiny_4_32 --pictures DIR --count 4 --levels linear

A shared gradient tells more than its own parameter. ∂L/∂W_p mixes all patches, and is unmixed by the position
embedding's gradient, which is that of every token. Where that one is missing, two spans remain: the rows of ∂L/∂W_p
hold the patches, those of the first attention's ∂L/∂W_qkv what it reads of them, and the positions are known. Where a
patch has fewer pixels than there are dimensions beyond the tokens, as in most small models, the second span alone
determines it. And every later projection has such a span, of what the blocks before it made of the picture.

So the answer depends on who attacks. Three levels: `published`, closed forms of one image; `linear`, with one more
that needs ∂L/∂W_qkv alone; `search`, with Gauss-Newton steps on the spans of the next projections. For each, groups of
tensors are withheld by the `withhold` defense, in sets as small as can still stop all attacks seen so far, until one
does. It is compared with a guess that needs no gradient: the mean of public pictures. A level whose own attacks apply
to no set is left out: it would repeat the one before under another name. An attack that fails ends the command, as a
crash stops nothing. Then clients train with these sets kept to themselves or frozen. `first_block` is left out: for one
picture it needs the gradients that `row_space` needs, and all of these sets lack one of them.

The same command goes on where an earlier call stopped.
"""

import argparse
from pathlib import Path

from experiments.studies.harness.options import folder

VARIANTS = ("stock", "april")

LEVELS = {
    "published": ("patch_gradient", "april", "row_space", "fc_bias"),
    "linear": ("patch_gradient", "april", "row_space", "fc_bias", "qkv_row_space"),
    "search": ("patch_gradient", "april", "row_space", "fc_bias", "qkv_row_space", "later_row_spaces"),
}
"""Who attacks: the closed forms of `conf/attack`; one more that is linear; and a local search where those end.

Each has all attacks of those before it. Where none of its own runs, it is no level of its own.
"""


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="withholding.md, .csv, .png, results.jsonl, trainings/")
    parser.add_argument("--model", default="vit_nano", help="option of conf/model")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="of the first block")
    parser.add_argument("--levels", nargs="+", choices=tuple(LEVELS), default=list(LEVELS), help="who attacks")
    parser.add_argument("--pictures", type=folder, help="folder with one folder of pictures per class; default: digits")
    parser.add_argument("--count", type=int, default=8, help="pictures, one in each update")
    parser.add_argument("--margin", type=float, default=3.0, help="dB above the guess that count as a leak")
    parser.add_argument("--clients", type=int, default=10, help="of the trainings")
    parser.add_argument("--rounds", type=int, default=30, help="of the trainings; 0: none")
    parser.add_argument("--lr", type=float, default=2e-3, help="of the clients' AdamW")
    parser.add_argument("--train", type=int, default=4, help="smallest sets that are trained with, at most")
    parser.add_argument("--seeds", type=int, default=2, help="trainings of each set")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    return parser
