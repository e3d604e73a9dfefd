"""MJP's Table 5 (Ren et al. 2023): what closed forms get out of masked jigsaws, by one command.

python -m experiments.studies.mjp_table5 --pictures DIR --out DIR
python -m experiments.studies.mjp_table5 --pictures DIR --out DIR --count 800 --per-class --workers 2
python -m experiments.studies.mjp_table5 --pictures DIR --out DIR --count 3 --rows 'mjp*' baseline*

Each picture is one client's batch of one, its gradient taken by the client's own code at initialisation or with given
weights. APRIL as published attacks its own architecture, `patch_gradient` the stock models on the same pictures; for
MJP attackers who know the defense follow. Pictures are compared in [0, 1] after rounding to 8 bits. The same
command goes on where an earlier call stopped; more pictures, ratios and rows may be asked for later.
"""

import argparse
from pathlib import Path

from experiments.studies.harness.options import folder
from experiments.studies.mjp_table5.rows import GROUPS


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=folder, required=True, help="folder with one folder of pictures per class")
    parser.add_argument("--out", type=Path, required=True, help="folder for the page, its table and figure, results")
    parser.add_argument("--count", type=int, default=800, help="pictures")
    parser.add_argument("--per-class", action="store_true", help="spread over the classes evenly; else drawn at random")
    parser.add_argument("--rows", nargs="+", help="globs on names of rows, such as 'mjp*' deit_s.a; default: all")
    parser.add_argument(
        "--ratio",
        type=float,
        nargs="+",
        default=[0.9, 0.1],
        help="masked share of x̃; more: rows of MJP and a guess",
    )
    parser.add_argument(
        "--models", nargs=2, default=["vit_small", "deit_small"], help="options of conf/model for ViT-S and DeiT-S"
    )
    parser.add_argument(
        "--checkpoint",
        nargs="+",
        default=[],
        metavar="MODEL=FILE",
        help=f"trained weights of {', '.join(GROUPS)}; gives acc",
    )
    parser.add_argument(
        "--shown", type=int, default=3, help="pictures in the figure, at most those that the first call kept"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of torch, in each process")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return parser
