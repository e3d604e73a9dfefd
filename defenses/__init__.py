"""Hooks on a client's model, batch, loss and update."""

from defenses.base import Batch, BatchGradient, ClientRound, Defense, DefenseChain, Plan
from defenses.mjp import MaskedJigsawPuzzle
from defenses.perturbation import GradientClip, GradientNoise
from defenses.position import FixedPositionEmbedding, NoPositionEmbedding, WithholdPositionEmbedding

__all__ = [
    "Batch",
    "BatchGradient",
    "ClientRound",
    "Defense",
    "DefenseChain",
    "FixedPositionEmbedding",
    "GradientClip",
    "GradientNoise",
    "MaskedJigsawPuzzle",
    "NoPositionEmbedding",
    "Plan",
    "WithholdPositionEmbedding",
]
