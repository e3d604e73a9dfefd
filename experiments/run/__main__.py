"""`python -m experiments.run`: fedsim."""

from experiments.commands import start

if __name__ == "__main__":
    start("fedsim")
