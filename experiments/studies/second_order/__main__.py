"""`python -m experiments.studies.second_order`."""

from experiments.studies.harness.options import begin
from experiments.studies.second_order.options import arguments


def main() -> None:
    """The study, once its options are known to be right."""
    begin(arguments(), "experiments.studies.second_order.study")


if __name__ == "__main__":
    main()
