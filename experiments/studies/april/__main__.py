"""`python -m experiments.studies.april`."""

from experiments.studies.april.study import main

if __name__ == "__main__":
    main()
