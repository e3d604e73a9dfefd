"""What applies to which family of backbones: every closed form on one image of one member, made small.

python -m experiments.benchmarks.backbones
"""

import argparse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from fedsim.result import AttackResult

SMALL: dict[str, Any] = {"depth": 2, "embed_dim": 96, "num_heads": 3, "init_values": 0.1}
SIDE, PATCH = 24, 8
ATTACKS = ("labels", "patch_gradient", "row_space", "first_block", "patch_bag", "april")
EXACT = 60.0


@dataclass(frozen=True)
class Family:
    """A row of the table: where its positions enter, and what stands beside the patches."""

    model: str
    positions: str
    beside: str
    kwargs: dict[str, Any] = field(default_factory=dict)


FAMILIES = {
    "DINOv3": Family("vit_small_patch16_dinov3", "rotary", "class token, 4 registers"),
    "RoPE-ViT": Family("vit_small_patch16_rope_224", "rotary", "class token"),
    "RoPE-ViT, learned rotations": Family("vit_small_patch16_rope_mixed_224", "rotary", "class token"),
    "RoPE, registers, average pooling": Family("vit_medium_patch16_rope_reg1_gap_256", "rotary", "1 register"),
    "EVA02, fused": Family("eva02_tiny_patch14_224", "learned and rotary", "class token"),
    "EVA02, q, k, v apart": Family("eva02_base_patch14_224", "learned and rotary", "class token"),
    "BEiT": Family("beit_base_patch16_224", "relative", "class token"),
    "registers, average pooling": Family("vit_medium_patch16_reg4_gap_256", "learned", "4 registers"),
    "DINOv2": Family("vit_small_patch14_reg4_dinov2", "learned", "class token, 4 registers"),
    "DeiT III": Family("deit3_small_patch16_224", "learned", "class token"),
    "SigLIP": Family("vit_base_patch16_siglip_224", "learned", "attention pooling"),
    "CLIP": Family("vit_base_patch16_clip_224", "learned, then a norm", "class token"),
    "no positions": Family("vit_base_patch16_224", "none", "class token", {"pos_embed": "none"}),
}


def main() -> None:
    """Print the table of docs/backbones.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=FAMILIES, metavar="FAMILY")
    names = parser.parse_args().families
    attacks = [f"`{name}`" for name in ATTACKS]
    print(f"| family | positions | beside the patches | {' | '.join(attacks)} |")
    print("| --- " * (3 + len(attacks)) + "|")
    for name in names:
        print(row(name))


def row(name: str) -> str:
    """One family's line of the table."""
    import fedsim
    from fedsim.models import ModelSpec

    family, image = FAMILIES[name], photograph()
    kwargs = {**SMALL, **family.kwargs}
    spec = ModelSpec(family.model, 10, img_size=SIDE, patch_size=PATCH, dtype="float64", kwargs=kwargs)
    seen = fedsim.observe(spec.build(0), image, [3])
    cells = [_cell(fedsim.score(fedsim.attack(attack, seen, progress=False), image, [3])) for attack in ATTACKS]
    return f"| {name}: `{family.model}` | {family.positions} | {family.beside} | {' | '.join(cells)} |"


def photograph() -> "Tensor":
    """One of scikit-learn's, in whole levels."""
    import torch
    from sklearn.datasets import load_sample_image

    photo = torch.tensor(load_sample_image("flower.jpg")).permute(2, 0, 1)[None].float()
    part = torch.nn.functional.interpolate(photo[..., 60:372, 160:472], size=SIDE, mode="area")
    return part.round() / 255


def _cell(result: "AttackResult") -> str:
    if result.status == "refused":
        return "refused"
    if result.status == "failed":
        return f"failed: {result.reason}"
    if result.images is None:
        return "certified" if result.certificate.certified else "not certified"
    assert result.scores is not None
    level = result.scores.images[0].psnr or 0.0
    if level >= EXACT:
        return "exact, certified" if result.certificate.certified else "exact"
    return "up to order" if "up to their order" in result.certificate.reason else f"{level:.0f} dB"


if __name__ == "__main__":
    main()
