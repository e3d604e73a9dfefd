"""The rows of MJP's Table 5 (Ren et al. 2023): what is shared, what attacks it, and the paper's numbers.

Φ is a recovery from the gradient of its argument, x̃ the jigsawed picture. Setting a compares Φ(x) with x, b Φ(x̃) with
x̃, c Φ(x̃) with x. The released evaluation masks a share of 0.9; training used 0.03 to 0.27.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

APRIL, APRIL_TOLD = "april", "april_told"
PATCH, PATCH_TOLD, ADAPTIVE = "patch_gradient", "patch_gradient_told", "adaptive"
MEAN, GREY = "mean_picture", "grey"

ATTACKS = {
    APRIL: "APRIL as published",
    APRIL_TOLD: "APRIL, told of MJP",
    PATCH: "patch_gradient",
    PATCH_TOLD: "patch_gradient, told of MJP",
    ADAPTIVE: "adaptive (knows MJP)",
    MEAN: "none: mean of other pictures",
    GREY: "none: grey",
}
GROUPS = {"vit_s": "ViT-S", "deit_s": "DeiT-S", "no_pe": "DeiT-S no PE", "mjp": "DeiT-S+MJP"}
"""The paper's models. At initialisation ViT-S and DeiT-S differ by their normalisation alone."""


@dataclass(frozen=True)
class Published:
    """A row as the paper prints it; acc in per cent, PSNR in dB."""

    acc: float
    mse: float
    fft: float
    psnr: float
    ssim: float
    lpips: float


PAPER = {
    "vit_s.a": Published(78.1, 0.0278, 0.0039, 19.27, 0.5203, 0.3623),
    "deit_s.a": Published(79.8, 0.0350, 0.0057, 18.94, 0.5182, 0.3767),
    "no_pe.a": Published(77.5, 0.0379, 0.0082, 20.22, 0.5912, 0.2692),
    "mjp.a": Published(80.5, 0.1055, 0.0166, 11.52, 0.4053, 0.6545),
    "vit_s.b": Published(18.7, 0.0327, 0.0016, 18.44, 0.6065, 0.2836),
    "deit_s.b": Published(36.0, 0.0391, 0.0024, 17.60, 0.5991, 0.3355),
    "no_pe.b": Published(77.5, 0.0379, 0.0025, 20.25, 0.6655, 0.2370),
    "mjp.b": Published(62.9, 0.1043, 0.0059, 11.66, 0.4493, 0.6519),
    "mjp_without.a": Published(40.6, 0.1043, 0.0059, 11.66, 0.4493, 0.6519),
    "mjp.c": Published(62.9, 0.1706, 0.0338, 8.07, 0.0875, 0.8945),
}


@dataclass(frozen=True)
class TableCase:
    """What one client shares: a model, the picture's state, and the architecture of the first block.

    Attributes:
        ratio: share of masked positions in x̃, at most; None: x itself.
        variant: `stock`, or `april`: the architecture of APRIL's closed form.
    """

    group: str
    variant: str
    ratio: float | None

    @property
    def name(self) -> str:
        return f"{self.group}-{self.variant}-{'x' if self.ratio is None else f'jigsawed{self.ratio:g}'}"

    def overrides(self, models: tuple[str, str]) -> list[str]:
        """Overrides of `fedsim-audit`'s configuration. `models`: options of conf/model for ViT-S and DeiT-S."""
        found = [f"model={models[0] if self.group == 'vit_s' else models[1]}", f"model.variant={self.variant}"]
        defenses = ["no_pe"] if self.group == "no_pe" else []
        if self.group == "mjp":
            share = "defense.mjp.probability=0.0" if self.ratio is None else f"defense.mjp.ratio={self.ratio}"
            return [*found, "defense=[mjp]", share]
        if self.ratio is not None:  # the model as it is, on x̃
            return [*found, f"defense=[{','.join([*defenses, 'mjp_jp'])}]", f"defense.mjp_jp.ratio={self.ratio}"]
        return [*found, f"defense=[{','.join(defenses)}]"]


@dataclass(frozen=True)
class TableRow:
    """A line of the table.

    Attributes:
        name: of the paper's row, with its setting; rows that it lacks have names of their own.
        against: `private`: compared with x; `seen`: with what the model saw.
        told: the model is evaluated with the mask of x̃, for the accuracy.
    """

    name: str
    label: str
    setting: str
    attack: str
    case: TableCase
    against: Literal["private", "seen"]
    published: Published | None = None
    told: bool = True


def plan(ratios: Sequence[float]) -> list[TableRow]:
    """All rows; the first ratio is the protocol's, each further one adds rows of MJP alone, and a guess of its x̃."""
    rows: list[TableRow] = []
    for group in GROUPS:
        rows += _attacked(f"{group}.a", group, "a", None, "private")
    for group in GROUPS:
        rows += _attacked(f"{group}.b", group, "b", ratios[0], "seen")
    april = TableCase("mjp", "april", ratios[0])
    label = f"{GROUPS['mjp']} (w/o)"
    rows.append(TableRow("mjp_without.a", label, "a", APRIL, april, "seen", PAPER["mjp_without.a"], told=False))
    rows += _attacked("mjp.c", "mjp", "c", ratios[0], "private")
    for ratio in ratios[1:]:
        rows += _attacked(f"mjp@{ratio:g}.b", "mjp", "b", ratio, "seen")
        rows += _attacked(f"mjp@{ratio:g}.c", "mjp", "c", ratio, "private")
    jigsawed = TableCase("deit_s", "stock", ratios[0])
    for attack in (MEAN, GREY):
        rows.append(TableRow("baseline.a", "no gradient", "a", attack, jigsawed, "private"))
        rows.append(TableRow("baseline.b", "no gradient", "b", attack, jigsawed, "seen"))
    for ratio in ratios[1:]:
        jigsawed, label = TableCase("deit_s", "stock", ratio), f"no gradient, ratio {ratio:g}"
        rows += [TableRow(f"baseline@{ratio:g}.b", label, "b", attack, jigsawed, "seen") for attack in (MEAN, GREY)]
    return rows


def _attacked(
    name: str, group: str, setting: str, ratio: float | None, against: Literal["private", "seen"]
) -> list[TableRow]:
    label = GROUPS[group] if "@" not in name else f"{GROUPS[group]}, ratio {ratio:g}"
    april, stock = TableCase(group, "april", ratio), TableCase(group, "stock", ratio)
    printed = APRIL_TOLD if group == "mjp" and ratio is not None else APRIL
    attacked = [(printed, april), (PATCH, stock)]
    if group == "mjp":
        attacked = [(printed, april), (APRIL_TOLD, april), (PATCH, stock), (PATCH_TOLD, stock), (ADAPTIVE, stock)]
    return [
        TableRow(name, label, setting, attack, case, against, PAPER.get(name) if attack == printed else None)
        for attack, case in dict.fromkeys(attacked)
    ]
