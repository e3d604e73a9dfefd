"""Can a report be made to lie? Run folders, audits and matrices built to that end, and what each page says of them.

python -m tests.verdicts --out DIR                       all cases, a minute on 2 cores
python -m tests.verdicts --out DIR --only guess noise    those whose names hold one of these words
python -m tests.verdicts --out DIR --page FILE           the table as a page of the documentation

Ends with 1 where something that must hold does not.
"""

import argparse
from pathlib import Path

from experiments.studies.harness.options import parsed


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="an empty or new folder for what is built")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="cases whose names hold one of these")
    parser.add_argument("--page", type=Path, help="write the table as a page of the documentation")
    return parsed(parser)


def main() -> None:
    arguments = _arguments()

    from tests.verdicts.command import run

    run(arguments)


if __name__ == "__main__":
    main()
