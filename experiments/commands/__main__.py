"""`python -m experiments.commands fedsim-audit …`: a command where its console script is not on the path."""

import sys

from experiments.commands import start

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    start(sys.argv[0])
