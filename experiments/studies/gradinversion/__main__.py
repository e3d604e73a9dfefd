"""`python -m experiments.studies.gradinversion`."""

from experiments.studies.gradinversion.study import main

if __name__ == "__main__":
    main()
