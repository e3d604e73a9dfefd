"""The run folder and the trackers."""

from fedsim.tracking.run_folder import RunFolder
from fedsim.tracking.trackers import TensorBoard, Tracker, Trackers

__all__ = ["RunFolder", "TensorBoard", "Tracker", "Trackers"]
