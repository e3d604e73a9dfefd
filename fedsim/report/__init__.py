"""One self-contained page per run, sweep or comparison, rebuilt from the folders' files and nothing else."""

from fedsim.report.pictures import save_png
from fedsim.report.render import build_comparison, build_report, build_sweep_report
from fedsim.report.verdict import verdict_of

__all__ = ["build_comparison", "build_report", "build_sweep_report", "save_png", "verdict_of"]
