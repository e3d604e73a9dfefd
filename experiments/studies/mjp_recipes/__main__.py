"""`python -m experiments.studies.mjp_recipes`."""

from experiments.studies.harness.options import begin


def main() -> None:
    """The study, once its options are known to be right."""
    begin(__package__)


if __name__ == "__main__":
    main()
