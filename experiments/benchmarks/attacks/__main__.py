"""What an iteration of gradient matching costs, against a plain PyTorch loop and against the floor, in one run.

python -m experiments.benchmarks.attacks                         ViT-Ti/4 at 32 px and ViT-S/16 at 224 px
python -m experiments.benchmarks.attacks --models vit_tiny_4_32 --restarts 8 --threads 1
"""

import argparse

from experiments.studies.harness.options import parsed


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["vit_tiny_4_32", "vit_small"], help="names of conf/model")
    parser.add_argument(
        "--iterations", type=int, default=5, help="of the short run; the long one has three times as many"
    )
    parser.add_argument("--restarts", type=int, default=8, help="candidates computed together")
    parser.add_argument("--repeats", type=int, default=5, help="rounds, of which the medians are shown")
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--memory-gib", type=float, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--peak", action="store_true", help=argparse.SUPPRESS)
    return parsed(parser)


def main() -> None:
    arguments = _arguments()

    from experiments.benchmarks.attacks.command import run

    run(arguments)


if __name__ == "__main__":
    main()
