"""`python -m experiments.prior`: fedsim-prior."""

from experiments.commands import start

if __name__ == "__main__":
    start("fedsim-prior")
