"""`python -m experiments.studies.priors_defended`."""

from experiments.studies.harness.options import begin
from experiments.studies.priors_defended.options import arguments


def main() -> None:
    """The study, once its options are known to be right."""
    begin(arguments(), "experiments.studies.priors_defended.study")


if __name__ == "__main__":
    main()
