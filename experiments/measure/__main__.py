"""`python -m experiments.measure`: fedsim-measure."""

from experiments.commands import start

if __name__ == "__main__":
    start("fedsim-measure")
