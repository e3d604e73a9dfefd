"""`python -m experiments.studies.april`."""

from experiments.studies.april.options import arguments
from experiments.studies.harness.options import begin


def main() -> None:
    """The study, once its options are known to be right."""
    begin(arguments(), "experiments.studies.april.study")


if __name__ == "__main__":
    main()
