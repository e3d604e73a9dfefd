"""The run folder and the trackers."""

from fedsim.tracking.mlflow_run import MLflow
from fedsim.tracking.run_folder import RunFolder
from fedsim.tracking.trackers import TensorBoard, Tracker, Trackers
from fedsim.tracking.wandb_run import WeightsAndBiases

__all__ = ["MLflow", "RunFolder", "TensorBoard", "Tracker", "Trackers", "WeightsAndBiases"]
