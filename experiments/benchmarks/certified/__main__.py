"""`python -m experiments.benchmarks.certified`."""

from experiments.benchmarks.certified.options import arguments
from experiments.studies.harness.options import begin

if __name__ == "__main__":
    begin(arguments(), "experiments.benchmarks.certified.command")
