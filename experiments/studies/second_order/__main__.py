"""`python -m experiments.studies.second_order`."""

from experiments.studies.harness.options import begin

if __name__ == "__main__":
    begin(__package__)
