"""`python -m experiments.studies.gradinversion`."""

from experiments.studies.gradinversion.options import arguments
from experiments.studies.harness.options import begin


def main() -> None:
    """The study, once its options are known to be right."""
    begin(arguments(), "experiments.studies.gradinversion.study")


if __name__ == "__main__":
    main()
