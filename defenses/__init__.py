"""Hooks on a client's model, batch, loss and update."""

from defenses.ats import AutomaticTransformation
from defenses.base import Batch, BatchGradient, ClientRound, Defense, DefenseChain, Plan
from defenses.compression import QSGD, Half, Sign, TopK
from defenses.dp_sgd import DPSGD
from defenses.leakage_gate import LeakageGate
from defenses.local_dp import LocalDP
from defenses.mixing import CutMix, InstaHide, MixUp
from defenses.mjp import MaskedJigsawPuzzle
from defenses.outpost import Outpost
from defenses.perturbation import GradientClip, GradientNoise
from defenses.position import FixedPositionEmbedding, NoPositionEmbedding, WithholdPositionEmbedding
from defenses.precode import Precode
from defenses.secure_aggregation import SecureAggregation
from defenses.soteria import Soteria
from defenses.withholding import Withhold

__all__ = [
    "DPSGD",
    "QSGD",
    "AutomaticTransformation",
    "Batch",
    "BatchGradient",
    "ClientRound",
    "CutMix",
    "Defense",
    "DefenseChain",
    "FixedPositionEmbedding",
    "GradientClip",
    "GradientNoise",
    "Half",
    "InstaHide",
    "LeakageGate",
    "LocalDP",
    "MaskedJigsawPuzzle",
    "MixUp",
    "NoPositionEmbedding",
    "Outpost",
    "Plan",
    "Precode",
    "SecureAggregation",
    "Sign",
    "Soteria",
    "TopK",
    "Withhold",
    "WithholdPositionEmbedding",
]
