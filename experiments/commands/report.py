"""`fedsim-report`: its arguments, and whether the folders are there, before what draws pages is imported."""

import argparse
import sys
from pathlib import Path

from experiments.cli.call import console, errors

DESCRIPTION = "Build the page of a run anew, or put several runs side by side. fedsim --help lists all commands."


def run_report() -> None:
    """The command; it exits with 2 where a folder is missing or no run."""
    parser = argparse.ArgumentParser(prog="fedsim-report", description=DESCRIPTION)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a run, a sweep, or several runs")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="page that compares several (comparison.html beside the first)"
    )
    arguments = parser.parse_args()
    try:
        for folder in arguments.folders:
            if not folder.is_dir():
                raise FileNotFoundError(f"no folder at {folder}")
        from experiments.cli.report import write_page

        console.print(str(write_page(arguments.folders, arguments.out)), markup=False)
    except (ValueError, OSError) as error:
        errors.print(f"error: {error}", markup=False)
        sys.exit(2)
