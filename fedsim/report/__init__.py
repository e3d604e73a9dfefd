"""One self-contained page per run, sweep or comparison, rebuilt from the folders' files and nothing else."""

from fedsim.report.pictures import save_png
from fedsim.report.render import build_comparison, build_report, build_sweep_report

__all__ = ["build_comparison", "build_report", "build_sweep_report", "save_png"]
