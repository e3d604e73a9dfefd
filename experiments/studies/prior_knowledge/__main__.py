"""`python -m experiments.studies.prior_knowledge`."""

from experiments.studies.prior_knowledge.study import main

if __name__ == "__main__":
    main()
