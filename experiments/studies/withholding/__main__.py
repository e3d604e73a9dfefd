"""`python -m experiments.studies.withholding`."""

from experiments.studies.harness.options import begin
from experiments.studies.withholding.options import arguments


def main() -> None:
    """The study, once its options are known to be right."""
    begin(arguments(), "experiments.studies.withholding.study")


if __name__ == "__main__":
    main()
