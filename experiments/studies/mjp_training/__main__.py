"""`python -m experiments.studies.mjp_training`."""

from experiments.studies.harness.options import begin
from experiments.studies.mjp_training.options import arguments


def main() -> None:
    """The study, once its options are known to be right."""
    begin(arguments(), "experiments.studies.mjp_training.study")


if __name__ == "__main__":
    main()
