"""One self-contained page per run or sweep, rebuilt from the folder's files and nothing else."""

from fedsim.report.pictures import save_png
from fedsim.report.render import build_report, build_sweep_report

__all__ = ["build_report", "build_sweep_report", "save_png"]
