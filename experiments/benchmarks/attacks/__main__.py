"""`python -m experiments.benchmarks.attacks`."""

from experiments.benchmarks.attacks.command import main

if __name__ == "__main__":
    main()
