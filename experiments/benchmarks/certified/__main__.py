"""`python -m experiments.benchmarks.certified`."""

from experiments.studies.harness.options import begin


def main() -> None:
    """The certificates, once the options are known to be right."""
    begin(__package__, "command")


if __name__ == "__main__":
    main()
