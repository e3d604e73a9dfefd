"""`fedsim-report`: build the page of a run anew, or put several runs side by side.

What draws pages is imported once the folders are known to be there.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.cli.call import console, errors

DESCRIPTION = "Build the page of a run anew, or put several runs side by side. fedsim --help lists all commands."
MARKS = ("config.yaml", "summary.json", "attacks.jsonl", "metrics.jsonl")
"""Files that make a folder a run's."""
PAGE = "comparison.html"


def run_report() -> None:
    """The command; it exits with 2 where a folder is missing or no run."""
    parser = argparse.ArgumentParser(prog="fedsim-report", description=DESCRIPTION)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a run, a sweep, or several runs")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="page that compares several (comparison.html beside the first)"
    )
    arguments = parser.parse_args()
    try:
        console.print(str(write_page(arguments.folders, arguments.out)), markup=False)
    except (ValueError, OSError) as error:
        said = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            more = "; --out FILE writes a comparison elsewhere" if len(arguments.folders) > 1 else ""
            said = (
                f"{Path(error.filename).parent}: the page cannot be written into this folder ({error.strerror}){more}"
            )
        errors.print(f"error: {said}", markup=False)
        sys.exit(2)


def write_page(folders: Sequence[Path], out: Path | None = None) -> Path:
    """The page of one run, of one sweep, or of several runs side by side.

    Args:
        out: file of a comparison; None: `comparison.html` beside the first run.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: one run was given with a file for a comparison, or one twice, or a folder that is no run among
            several.
    """
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"no folder at {folder}")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ValueError("each run once")
    from fedsim.report.matrix.files import build_matrix_report
    from fedsim.report.measures.page import build_measures_page
    from fedsim.report.render import build_comparison, build_report, build_sweep_report

    if len(folders) > 1:
        if strange := [said for folder in folders if (said := _no_run(folder))]:
            raise ValueError(f"several folders must be runs: {'; '.join(strange)}")
        return build_comparison(folders, out or folders[0].resolve().parent / PAGE)
    if out is not None:
        raise ValueError("--out is for a comparison of several runs, named one by one; a sweep's page is in its folder")
    (folder,) = folders
    if (folder / "matrix.json").is_file():
        return build_matrix_report(folder)
    if (folder / "measures.json").is_file():
        return build_measures_page(folder)
    return build_report(folder) if _is_run(folder) else build_sweep_report(folder)


def _no_run(folder: Path) -> str:
    """What the folder is if it is no run, and how its page is made; empty for a run."""
    from fedsim.report.compare.runs import find_runs

    alone = f"fedsim-report {folder} makes its page"
    if (folder / "matrix.json").is_file():
        return f"{folder} is a matrix ({alone}; its runs are in {folder / 'rows'}, to be named one by one)"
    if (folder / "measures.json").is_file():
        return f"{folder} is of fedsim measure ({alone})"
    if _is_run(folder):
        return ""
    if find_runs(folder):
        return f"{folder} holds several ({alone}, or name its runs one by one)"
    return f"{folder} holds none"


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in MARKS)
