"""`python -m experiments.studies.priors_defended`."""

from experiments.studies.priors_defended.study import main

if __name__ == "__main__":
    main()
