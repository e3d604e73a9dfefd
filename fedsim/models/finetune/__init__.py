"""What of a model is trained and shared where the rest stays at a public checkpoint."""

from fedsim.models.finetune.adapter import Adapter
from fedsim.models.finetune.lora import LoRA
from fedsim.models.finetune.parts import Bias, Head, LastK, Norm
from fedsim.models.finetune.prompt import Prompt
from fedsim.models.finetune.recipe import FULL, Finetune, Full, recorded_finetune

__all__ = [
    "FULL",
    "Adapter",
    "Bias",
    "Finetune",
    "Full",
    "Head",
    "LastK",
    "LoRA",
    "Norm",
    "Prompt",
    "recorded_finetune",
]
