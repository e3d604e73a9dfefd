"""`python -m experiments.studies.mjp_table5`."""

from experiments.studies.mjp_table5.study import main

if __name__ == "__main__":
    main()
