"""`fedsim-report`: build the page of a run anew, or put several runs side by side."""

from collections.abc import Sequence
from pathlib import Path

from experiments.commands import start
from experiments.commands.report import run_report
from fedsim.report.matrix.files import build_matrix_report
from fedsim.report.measures.page import build_measures_page
from fedsim.report.render import build_comparison, build_report, build_sweep_report

MARKS = ("config.yaml", "summary.json", "attacks.jsonl", "metrics.jsonl")
"""Files that make a folder a run's."""
PAGE = "comparison.html"
OTHERS = {"matrix.json": build_matrix_report, "measures.json": build_measures_page}
"""Files that make a folder one of `fedsim-matrix` and of `fedsim-measure`, and what builds their pages."""


def main() -> None:
    """The command, called from Python: it exits."""
    run_report()


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
    if len(folders) > 1:
        if strange := [str(folder) for folder in folders if not _is_run(folder)]:
            raise ValueError(f"no runs: {', '.join(strange)}; a sweep's page is made from its folder alone")
        return build_comparison(folders, out or folders[0].resolve().parent / PAGE)
    if out is not None:
        raise ValueError("--out is for a comparison of several runs, named one by one; a sweep's page is in its folder")
    (folder,) = folders
    for name, build in OTHERS.items():
        if (folder / name).is_file():
            return build(folder)
    return build_report(folder) if _is_run(folder) else build_sweep_report(folder)


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in MARKS)


if __name__ == "__main__":
    start("fedsim-report")
