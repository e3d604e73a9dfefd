"""timm models by recipe, and the parts of vision transformers by role."""

from fedsim.models.architecture import (
    Architecture,
    ModelSpec,
    ModelWrapper,
    architecture_seed,
    input_size,
    normalisation,
    parameter_count,
)
from fedsim.models.checkpoint import load_checkpoint
from fedsim.models.normaliser import Normaliser
from fedsim.models.own import OwnArchitecture, check_mode, own_architecture, training_mode_of
from fedsim.models.roles import ViTRoles, find_roles

__all__ = [
    "Architecture",
    "ModelSpec",
    "ModelWrapper",
    "Normaliser",
    "OwnArchitecture",
    "ViTRoles",
    "architecture_seed",
    "check_mode",
    "find_roles",
    "input_size",
    "load_checkpoint",
    "normalisation",
    "own_architecture",
    "parameter_count",
    "training_mode_of",
]
