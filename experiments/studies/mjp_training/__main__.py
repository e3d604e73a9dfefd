"""`python -m experiments.studies.mjp_training`."""

from experiments.studies.mjp_training.study import main

if __name__ == "__main__":
    main()
