"""Masked Jigsaw Puzzle (Ren et al., CVPR 2023): shuffled patches without their position embeddings.

mask.py: which positions; jigsaw.py: which patch comes to each of them; embedding.py: what position embedding it takes;
localisation.py: the regression that keeps the other embeddings where they are; defense.py: all of it as a defense.
"""

from defenses.mjp.defense import MaskedJigsawPuzzle
from defenses.mjp.embedding import INDEX, UNKNOWN
from defenses.mjp.jigsaw import jigsaw_order, shuffle_patches
from defenses.mjp.localisation import LOCALISER
from defenses.mjp.mask import blockwise_masks

__all__ = [
    "INDEX",
    "LOCALISER",
    "UNKNOWN",
    "MaskedJigsawPuzzle",
    "blockwise_masks",
    "jigsaw_order",
    "shuffle_patches",
]
