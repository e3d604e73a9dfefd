"""Where numbers go besides the run folder's own files: TensorBoard, MLflow, Weights & Biases."""

from fedsim.tracking.mlflow_run import MLflow
from fedsim.tracking.trackers import TensorBoard, Tracker, Trackers
from fedsim.tracking.wandb_run import WeightsAndBiases

__all__ = ["MLflow", "TensorBoard", "Tracker", "Trackers", "WeightsAndBiases"]
