"""How MJP's models are trained and measured, at the two scales, as settings of `fedsim` and `fedsim-measure`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.python.load_config import load_config
from experiments.studies.harness.federation import UNOBSERVED, one_cycle
from experiments.studies.mjp_training.variants import DIMENSIONS, PAPER_RATIO, Variant
from fedsim.settings.composition import Config

WARM_UP = 20 / 300
"""Share of the training in which the learning rate rises."""
WEIGHT_DECAY = 0.05

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
class TrainingScale:
    """A federated training with the paper's optimiser, and what is measured of its model.

    Clients share the gradient of one batch each, the server takes the step: together they are the paper's one batch.

    Attributes:
        model: overrides of `fedsim`, of the model and its pictures' size.
        rounds: one step each.
        clients, batch: their product is the size of a step's batch.
        rate: greatest learning rate.
        ratio: of the masks of J, and of all variants of Table 4 that have any.
        test: pictures that are measured; None: all.
        measured: mask ratios of jigsawed pictures.
        headline: that of them whose numbers stand beside the paper's.
        draws: of the masks, at each ratio.
        differs: from the paper, a sentence each.
    """

    model: Sequence[str]
    rounds: int
    clients: int
    batch: int
    rate: float
    ratio: float
    test: int | None
    measured: Sequence[float]
    headline: float
    draws: int
    differs: Sequence[str]
    test_batch: int = 100
    folds: int = 5
    seeds: int = 1
    overrides: Sequence[str] = field(default=())

    def trainings(self, pictures: Path, device: str, threads: int) -> dict[str, Config]:
        """Settings of a run by each recipe, without defenses; here of one that has no name."""
        config = self.federation(pictures, device, threads, ["strategy=fedsgd"])
        config["strategy"] |= one_cycle(self.rate, self.rounds, WARM_UP, WEIGHT_DECAY)
        return {"": config}

    def federation(self, pictures: Path, device: str, threads: int, strategy: Sequence[str]) -> Config:
        """What runs of every strategy have in common, with the overrides of one."""
        config = load_config(
            "run",
            "data=imagefolder",
            "data.auxiliary_fraction=0",  # nobody attacks
            "data.verify=false",  # once for each of many trainings; a broken file is named when it is decoded
            *self.model,
            *strategy,
            *UNOBSERVED,
            "defense=[]",
            f"simulation.threads={threads}",
            f"client.device={device}",
            f"client.batch_size={self.batch}",
            "client.label_smoothing=0.1",
            f"num_clients={self.clients}",
            f"num_rounds={self.rounds}",
            f"evaluate_every={self.rounds}",
            *self.overrides,
        )
        config["data"]["path"] = str(pictures)
        return {key: value for key, value in config.items() if key != "run_dir"}

    def defended(self, training: Config, variant: Variant, seed: int) -> Config:
        """The settings of one variant's run."""
        defense = self.defenses([variant])[variant.name]
        data = {**training["data"], "seed": seed}
        return {**training, "data": data, "seed": seed, "defense": defense}

    def defenses(self, variants: Sequence[Variant]) -> dict[str, Config]:
        """The settings of their defenses, by their names."""
        return {variant.name: load_config("run", *variant.overrides)["defense"] for variant in variants}

    def measuring(self, seed: int, device: str) -> Config:
        """Settings of `fedsim-measure`, without runs."""
        config = load_config("measure")
        config["measure"] |= {
            "num_images": self.test,
            "batch_size": self.test_batch,
            "ratios": list(self.measured),
            "draws": self.draws,
            "folds": self.folds,
            "dimensions": list(DIMENSIONS),
            "attention_ratio": self.headline,
        }
        return {**config, "seed": seed, "device": device, "run_dir": None}


@dataclass(frozen=True)
class FedAvgScale(TrainingScale):
    """Clients train for an epoch in each round, by AdamW whose state begins anew; the server averages their weights.

    Attributes:
        side: of the images in pixels.
    """

    side: int = 32

    def trainings(self, pictures: Path, device: str, threads: int) -> dict[str, Config]:
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
    "small": TrainingScale(
        model=(
            "model=vit_tiny_4_32",
            "model.img_size=24",
            "+model.kwargs={depth: 3, embed_dim: 64, num_heads: 4}",
        ),
        rounds=700,
        clients=4,
        batch=32,
        rate=3e-3,
        ratio=0.27,
        test=None,
        measured=(0.09, 0.27, 0.5),
        headline=0.5,
        draws=2,
        differs=(
            "The model is a ViT of 3 blocks of width 64 on a grid of 6x6 patches, trained in 700 steps of 128 "
            "pictures; the paper's is trained in 300 epochs of ImageNet.",
            "A ratio of 0.03 masks one position of 36 at most, and a puzzle of one patch is none. Table 4's variants "
            "are therefore trained with ratio 0.27, Table 3's last row, in place of the paper's 0.03; the smallest "
            "block, 8 of 196 patches in the paper, is in proportion to the grid.",
            "With 36 positions the regression of Table 8 has fewer points than dimensions, as in the paper (196 and "
            "384), but errors are of another size: a guess is 9 places off in 1D.",
        ),
    ),
    "paper": TrainingScale(
        model=("model=deit_small",),
        rounds=375_300,
        clients=8,
        batch=128,
        rate=1e-3,
        ratio=PAPER_RATIO,
        test=None,
        measured=(0.03, 0.09, 0.15, 0.21, 0.27, 0.5),
        headline=0.5,
        draws=1,
        test_batch=256,
        differs=(
            "RandAugment, Mixup, CutMix, erasing and repeated augmentation are left out: clients here take pictures as "
            "they are.",
            "375,300 steps are 300 epochs of ImageNet-1K's 1,281,167 pictures at batch 1,024; batches are drawn anew "
            "each round, not without replacement over an epoch.",
        ),
    ),
}


RECIPE_SCALES = {
    "small": FedAvgScale(
        **vars(SCALES["small"])
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
        **vars(SCALES["paper"])
        | {
            "side": 224,
            "rounds": 300,
            "seeds": 3,
            "differs": ("RandAugment, Mixup, CutMix, erasing and repeated augmentation are left out.",),
        }
    ),
}
