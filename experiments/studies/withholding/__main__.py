"""`python -m experiments.studies.withholding`."""

from experiments.studies.withholding.study import main

if __name__ == "__main__":
    main()
