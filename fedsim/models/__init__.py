"""timm vision transformers by recipe, and their parts by role."""

from fedsim.models.architecture import (
    Architecture,
    ModelSpec,
    ModelWrapper,
    architecture_seed,
    input_size,
    normalisation,
    parameter_count,
)
from fedsim.models.normaliser import Normaliser
from fedsim.models.roles import ViTRoles, find_roles

__all__ = [
    "Architecture",
    "ModelSpec",
    "ModelWrapper",
    "Normaliser",
    "ViTRoles",
    "architecture_seed",
    "find_roles",
    "input_size",
    "normalisation",
    "parameter_count",
]
