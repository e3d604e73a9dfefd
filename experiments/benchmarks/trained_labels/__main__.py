"""Label counts from updates of trained models: rules × steps of training × batch sizes, and after several local steps.

python -m experiments.benchmarks.trained_labels --cifar10 DIR --out DIR

`vit_nano` (width 64, 2 blocks) on scikit-learn's digits and on CIFAR-10 at 32 px in patches of 4, trained by SGD on
batches of 32 of all private images; attacked batches are drawn at random from these, and public images are of no
client. A rule sees the head's gradient as it would be shared, in float32.
"""

import argparse
from pathlib import Path

from experiments.benchmarks.trained_labels import LOCAL, SIZES
from experiments.studies.harness.options import parsed

STEPS = (0, 60, 200, 400, 1000)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar10", type=Path, help="folder with train/ and val/ of ten class folders; none: digits")
    parser.add_argument("--batches", type=int, default=40, help="batches for each cell")
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS, help="of training")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="images in an update")
    parser.add_argument("--local", type=int, nargs="*", default=LOCAL, help="local steps, of the first size")
    parser.add_argument("--lr", type=float, default=0.05, help="of local steps")
    parser.add_argument("--out", type=Path, default=Path("runs/trained_labels"), help="folder of trained_labels.md")
    return parsed(parser)


def main() -> None:
    arguments = _arguments()

    from experiments.benchmarks.trained_labels.command import run

    run(arguments)


if __name__ == "__main__":
    main()
