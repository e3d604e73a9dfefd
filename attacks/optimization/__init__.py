"""Attacks that search for pictures whose update is the one that was shared: one engine, the papers as settings."""

from attacks.optimization.engine import GradientMatching
from attacks.optimization.matching.objectives import (
    L1,
    Cosine,
    LayerCosine,
    LayerL2,
    Objective,
    PositionAlignment,
    SquaredL2,
    TagDistance,
)
from attacks.optimization.matching.signs import SignCosine
from attacks.optimization.parametrisation import Parametrisation, PatchRowSpace, Pixels
from attacks.optimization.search.descent import Descent
from attacks.optimization.search.group import GroupConsistency
from attacks.optimization.search.optimisers import OptimiserSettings
from attacks.optimization.search.schedule import Schedule
from attacks.optimization.second_order.attack import GaussNewton
from attacks.optimization.second_order.search import LevenbergMarquardt
from attacks.optimization.settings import Budget, Matching

__all__ = [
    "L1",
    "Budget",
    "Cosine",
    "Descent",
    "GaussNewton",
    "GradientMatching",
    "GroupConsistency",
    "LayerCosine",
    "LayerL2",
    "LevenbergMarquardt",
    "Matching",
    "Objective",
    "OptimiserSettings",
    "Parametrisation",
    "PatchRowSpace",
    "Pixels",
    "PositionAlignment",
    "Schedule",
    "SignCosine",
    "SquaredL2",
    "TagDistance",
]
