"""`python -m experiments.audit`: fedsim-audit."""

from experiments.commands import start

if __name__ == "__main__":
    start("fedsim-audit")
