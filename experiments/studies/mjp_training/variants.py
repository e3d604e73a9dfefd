"""The models of MJP's Tables 3, 4, 6 and 8 (Ren et al. 2023): how each is trained, and the paper's numbers.

Tables share models: ratio 0 is Table 4's D, and J is a row of Table 3. Each is trained once.
"""

from dataclasses import dataclass

PAPER_RATIO = 0.03
"""Of J: the paper's 80.5 % and 82.9 % are those of Table 3's row 0.03."""

RATIOS = (0.0, 0.03, 0.09, 0.15, 0.21, 0.27)
"""Of the masks in training, Table 3."""

DIMENSIONS = (3, 4, 5, 6, 7)

TABLE_3 = {
    0.0: (80.0, 16.56, 64.0),
    0.03: (80.5, 8.96, 82.9),
    0.09: (80.3, 6.36, 88.1),
    0.15: (80.4, 5.23, 90.5),
    0.21: (80.2, 4.39, 92.3),
    0.27: (80.3, 3.97, 93.1),
}
"""Top-1 and Consistency in per cent, Diff. Norm. between them."""

TABLE_4 = {
    "A": (79.8, 64.3),
    "B": (77.5, 100.0),
    "C": (74.9, 74.8),
    "D": (80.0, 64.0),
    "E": (79.2, 73.8),
    "F": (79.9, 79.6),
    "G": (80.1, 83.8),
    "H": (79.9, 83.4),
    "I": (80.0, 83.8),
    "J": (80.5, 82.9),
}
"""Top-1 and Consistency in per cent."""

TABLE_6 = {"A": (54.6, 68.6, 78.0, 85.5, 90.7), "J": (46.7, 58.4, 69.1, 78.1, 84.6)}
"""Explained variance in per cent, at `DIMENSIONS`."""

TABLE_8 = {"A": (0.945, 0.076), "I": (0.566, 0.042), "J": (1.301, 0.134)}
"""Mean absolute error of position regression, 1D and 2D."""

LETTERS = {
    "A": ("the ViT alone", None),
    "B": ("A without position embeddings", "no_pe"),
    "C": ("A + SPP (all patches shuffled, pixels in them too)", "mjp_spp"),
    "D": ("A + DAL (nonlinear)", "mjp_dal"),
    "E": ("A + JP (the puzzle alone)", "mjp_jp"),
    "F": ("A + JP + IDX (second table of embeddings)", "mjp_jp_idx"),
    "G": ("A + JP + UNK (unknown embedding)", "mjp_jp_unk"),
    "H": ("G + DAL (PCA)", "mjp_pca"),
    "I": ("G + DAL (linear)", "mjp_linear"),
    "J": ("G + DAL (nonlinear): MJP", "mjp"),
}
"""Rows of Table 4: what they are, and their option of conf/defense."""

WITH_RATIO = "EFGHIJ"
"""C shuffles whole pictures, D none."""


@dataclass(frozen=True)
class Variant:
    """A model to train.

    Attributes:
        name: a letter of Table 4, or `J@RATIO`: MJP with another ratio than J's.
        defense: an option of conf/defense.
        ratio: of the masks in training; None where the defense takes none.
    """

    name: str
    label: str
    defense: str | None
    ratio: float | None

    @property
    def overrides(self) -> list[str]:
        """Overrides of `fedsim`'s configuration."""
        if self.defense is None:
            return ["defense=[]"]
        share = [] if self.ratio is None else [f"defense.{self.defense}.ratio={self.ratio}"]
        return [f"defense=[{self.defense}]", *share]


def plan(ratio: float) -> list[Variant]:
    """Every model that the tables need, each once: A to J, then the other ratios of Table 3.

    Args:
        ratio: of the variants of Table 4 that have one.
    """
    letters = [
        Variant(letter, label, defense, ratio if letter in WITH_RATIO else None)
        for letter, (label, defense) in LETTERS.items()
    ]
    names = {name: share for share in RATIOS if (name := of_ratio(share, ratio)) not in LETTERS}
    return [*letters, *(Variant(name, f"MJP, ratio {share:g}", "mjp", share) for name, share in names.items())]


def of_ratio(share: float, ratio: float) -> str:
    """The variant that is Table 3's row `share`, where J has `ratio`."""
    if share == 0.0:
        return "D"
    return "J" if share == ratio else f"J@{share:g}"
