"""`python -m experiments.studies.prior_knowledge`."""

from experiments.studies.harness.options import begin
from experiments.studies.prior_knowledge.options import arguments


def main() -> None:
    """The study, once its options are known to be right."""
    begin(arguments(), "experiments.studies.prior_knowledge.study")


if __name__ == "__main__":
    main()
