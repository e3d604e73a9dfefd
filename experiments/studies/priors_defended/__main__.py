"""`python -m experiments.studies.priors_defended`."""

from experiments.studies.harness.options import begin

if __name__ == "__main__":
    begin(__package__)
