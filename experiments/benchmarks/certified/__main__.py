"""`python -m experiments.benchmarks.certified`."""

from experiments.studies.harness.options import begin

if __name__ == "__main__":
    begin(__package__, "command")
