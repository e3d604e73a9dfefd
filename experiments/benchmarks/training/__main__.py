"""What a federated round costs beside the local training itself: a bare torch loop, fedsim and its peers, in turn.

python -m experiments.benchmarks.training                           digits on vit_nano, 40 clients, batches of 16
python -m experiments.benchmarks.training --model vit_tiny_4_32 --clients 4 --passes 5 client.local_steps=2
python -m experiments.benchmarks.training --engines fedsim --also client.compile=true client.precision=bfloat16
python -m experiments.benchmarks.training --engines fedsim --passes 15 'defense=[mjp]' client.local_epochs=2

All train the same clients from the same weights on the same batches, each process with one torch thread; a pass is one
round of all clients, and who goes first changes from one to the next. Figures are ratios to the bare loop's pass beside
it. *bare* holds all images as the model reads them, loads the weights, takes torch's SGD and copies the weights.
*client* is what one client takes without an engine: load, train, share. *round* is a whole round: messages, checks,
sums. The first pass is a warm-up: without a defense all must end in the bare loop's weights, or the command fails.

Processor time is that of all processes of a way. pfl-research is optional: `--pfl-python` names the interpreter of an
environment that has it, beside fedsim's own packages. Further words are settings of fedsim; the optimiser is SGD.
"""

import argparse
import sys
from pathlib import Path

from experiments.studies.harness.options import parsed

ENGINES = ("fedsim", "ray", "pfl", "pfl2", "flower1", "flower2")
"""In one process, on two workers; pfl-research in one process, in two; Flower's engine with one worker, with two."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_nano", help="name of conf/model")
    parser.add_argument("--clients", type=int, default=40, help="that train in a pass")
    parser.add_argument("--batch", type=int, default=16, help="images of a step")
    parser.add_argument("--passes", type=int, default=15, help="of all clients, for each way")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES, help="beside the bare loop")
    parser.add_argument("--also", nargs="+", default=[], metavar="KEY=VALUE", help="a client with each setting besides")
    parser.add_argument("--pfl-python", type=Path, default=Path(sys.executable), help="Python that can import pfl")
    parser.add_argument("--serve", nargs=3, metavar=("ENGINE", "SOCKET", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings of fedsim, such as defense=[mjp]")
    return parsed(parser)


def main() -> None:
    arguments = _arguments()

    if arguments.serve is not None:
        from experiments.benchmarks.training.serve import serve

        engine, address, folder = arguments.serve
        serve(engine, address, Path(folder), arguments)
        return

    from experiments.benchmarks.training.command import run

    run(arguments)


if __name__ == "__main__":
    main()
