"""`python -m experiments.studies.mjp_table5`."""

from experiments.studies.harness.options import begin
from experiments.studies.mjp_table5.options import arguments


def main() -> None:
    """The study, once its options are known to be right."""
    begin(arguments(), "experiments.studies.mjp_table5.study")


if __name__ == "__main__":
    main()
