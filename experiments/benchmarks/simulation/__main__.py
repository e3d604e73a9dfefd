"""Time and memory per client message: Flower's engine, fedsim's Grids and a bare torch loop, in one run.

python -m experiments.benchmarks.simulation                              100 and 1,000 clients of 100 k, 100 of 5 M
python -m experiments.benchmarks.simulation --cases 100x22M --engines flower sums --rounds 3

Clients that do nothing but decode, add one and share; two workers. Flower's engine is `flwr.simulation.run_simulation`
(deprecated by its authors, still what `flwr run` uses); it needs a Ray that it works with. Each case is a process of
its own. A round is the median of the rounds after the first, processor time their mean over all threads of the
server's process, and of those that it started. Memory is the peak of the server's process, with what it has mapped of
Ray's store.
"""

import argparse

from experiments.studies.harness.options import parsed

ENGINES = ("flower", "whole", "observed", "sums", "inline", "bare")
"""Flower's own; updates whole, added up by Flower's FedAvg or where it was made; sums alone; one process; no Grid."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["100x100k", "1000x100k", "100x5M"], help="CLIENTSxPARAMETERS")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--one", nargs=2, metavar=("ENGINE", "CASE"), help=argparse.SUPPRESS)
    options = parsed(parser)
    if options.rounds < 2:
        parser.error(f"--rounds={options.rounds}: must be 2 or more; the first is not counted")
    return options


def main() -> None:
    arguments = _arguments()

    from experiments.benchmarks.simulation.command import run

    run(arguments)


if __name__ == "__main__":
    main()
