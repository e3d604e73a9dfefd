"""How the models are trained: FedAvg by a recipe, at the two scales, as settings of `fedsim`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.studies.mjp_training.scales import SCALES as TRAINING
from experiments.studies.mjp_training.scales import WARM_UP, WEIGHT_DECAY, TrainingScale
from fedsim.settings.composition import Config

AUGMENT = "client.augment=[{{RandomCrop: {{size: {side}, padding: {padding}}}}},RandomHorizontalFlip]"
COSINE = ("client.schedule.shape=cosine", f"client.schedule.warmup={WARM_UP:.4f}")

RECIPES: dict[str, Sequence[str]] = {
    "plain": (),
    "augment": (AUGMENT,),
    "cosine": COSINE,
    "both": (AUGMENT, *COSINE),
}
"""Overrides of `fedsim`, the side of its images left open."""


@dataclass(frozen=True)
class FedAvgScale(TrainingScale):
    """Clients train for an epoch in each round, by AdamW whose state begins anew; the server averages their weights.

    Attributes:
        side: of the images in pixels.
    """

    side: int = 32

    def trainings(self, pictures: Path, device: str, threads: int) -> dict[str, Config]:
        """Settings of a run by each recipe, without defenses."""
        return {recipe: self.fedavg(pictures, device, threads, recipe) for recipe in RECIPES}

    def fedavg(self, pictures: Path, device: str, threads: int, recipe: str) -> Config:
        sides = {"side": self.side, "padding": self.side // 8}
        strategy = [
            "strategy=fedavg",
            "client.local_epochs=1",
            "client.optimizer._target_=torch.optim.AdamW",
            f"client.optimizer.lr={self.rate}",
            f"+client.optimizer.weight_decay={WEIGHT_DECAY}",
            *(override.format(**sides) for override in RECIPES[recipe]),
        ]
        return self.federation(pictures, device, threads, strategy)


SCALES = {
    "small": FedAvgScale(
        **vars(TRAINING["small"])
        | {
            "model": (
                "model=vit_tiny_4_32",
                "model.patch_size=5",
                "model.img_size=25",
                "+model.kwargs={depth: 2, embed_dim: 64, num_heads: 4}",
            ),
            "side": 25,
            "clients": 2,
            "rounds": 14,
            "batch": 64,
            "rate": 2e-3,
            "seeds": 3,
            "differs": (
                "The model is a ViT of 2 blocks of width 64 on a grid of 5x5 patches, trained in 14 rounds of one "
                "epoch by 2 clients; the paper's is trained in 300 epochs of ImageNet, in one place, with "
                "RandAugment, Mixup, CutMix and erasing besides.",
                "A ratio of 0.03 masks no position of 25. Variants with a ratio are therefore trained with 0.27, "
                "Table 3's last row, in place of the paper's 0.03.",
                "The learning rate was chosen for no recipe: `plain` keeps it, the schedule rises to it.",
            ),
        }
    ),
    "paper": FedAvgScale(
        **vars(TRAINING["paper"])
        | {
            "side": 224,
            "rounds": 300,
            "seeds": 3,
            "differs": ("RandAugment, Mixup, CutMix, erasing and repeated augmentation are left out.",),
        }
    ),
}
