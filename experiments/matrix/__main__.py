"""`python -m experiments.matrix`: fedsim-matrix."""

from experiments.commands import start

if __name__ == "__main__":
    start("fedsim-matrix")
