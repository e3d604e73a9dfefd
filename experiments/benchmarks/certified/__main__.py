"""`python -m experiments.benchmarks.certified`."""

from experiments.benchmarks.certified.options import arguments
from experiments.studies.harness.options import begin


def main() -> None:
    """The certificates, once the options are known to be right."""
    begin(arguments(), "experiments.benchmarks.certified.command")


if __name__ == "__main__":
    main()
