"""Thousands of certificates, each held against the truth: is one ever wrong, and how often is there one?

python -m experiments.benchmarks.certified --pictures DIR --out DIR                       about 20 minutes on 2 cores
python -m experiments.benchmarks.certified --out DIR --count 500 --page certificates.md   on scikit-learn's digits

Models are trained first, then everything is passed through until there are as many certificates as asked for: every
model, state of training, defense and protocol, and random combinations of them. Each pass draws other images. The same
command goes on where an earlier call stopped. Exit code 1: a certificate was wrong.
"""

import argparse
from pathlib import Path

from experiments.cli.machine import cores
from experiments.studies.harness.options import folder


def arguments() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pictures", type=folder, help="folder of class folders; default: scikit-learn's digits")
    options.add_argument("--out", type=Path, required=True, help="folder of results.jsonl and the models' weights")
    options.add_argument("--page", type=Path, help="the page; default: certificates.md in the folder of results")
    options.add_argument("--count", type=int, default=5000, help="of certificates, at least")
    options.add_argument("--passes", type=int, default=20, help="at most, however few certificates there are")
    options.add_argument("--processes", type=int, dest="workers", default=cores(), help="default: the CPU cores")
    options.set_defaults(threads=1, device="cpu", seeds=None)
    return options
