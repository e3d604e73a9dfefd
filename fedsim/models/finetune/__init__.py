"""What of a model is trained and shared where the rest stays at a public checkpoint."""

from fedsim.models.finetune.parts import Bias, Head, LastK, Norm
from fedsim.models.finetune.recipe import FULL, Finetune, Full, recorded_finetune

__all__ = ["FULL", "Bias", "Finetune", "Full", "Head", "LastK", "Norm", "recorded_finetune"]
