"""Hooks on a client's model, batch, loss and update."""

from defenses.base import Batch, BatchGradient, ClientRound, Defense, DefenseChain, Plan
from defenses.image.ats import AutomaticTransformation
from defenses.image.augmentation import Augmentation
from defenses.image.mixing import CutMix, InstaHide, MixUp
from defenses.mjp import MaskedJigsawPuzzle
from defenses.model.position import FixedPositionEmbedding, NoPositionEmbedding, WithholdPositionEmbedding
from defenses.model.precode import Precode
from defenses.model.soteria import Soteria
from defenses.privacy.dp_sgd import DPSGD
from defenses.privacy.local_dp import LocalDP
from defenses.update.compression import QSGD, Half, Sign, TopK
from defenses.update.leakage_gate import LeakageGate
from defenses.update.outpost import Outpost
from defenses.update.perturbation import GradientClip, GradientNoise
from defenses.update.secure_aggregation import SecureAggregation
from defenses.update.withholding import Withhold

__all__ = [
    "DPSGD",
    "QSGD",
    "Augmentation",
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
