"""The rungs: each one thing that training has and demonstrations have not, alone and then together."""

from dataclasses import dataclass, replace
from typing import Any

STEP, DECAY = {"sgd": 0.1, "adamw": 1e-3}, 0.05
OPTIMISERS: dict[str, dict[str, Any]] = {
    "sgd": {"_target_": "torch.optim.SGD", "lr": STEP["sgd"]},
    "adamw": {"_target_": "torch.optim.AdamW", "lr": STEP["adamw"], "weight_decay": DECAY},
}


@dataclass(frozen=True)
class Rung:
    """How a client trains; the defaults are where everything leaks.

    Attributes:
        held: pictures of the client; None: one batch.
        steps: local steps, after which it shares the change of its weights; 0: it shares a gradient, unless `epoch`.
        epoch: local steps are those of one pass over its pictures.
        augment: of `crop`, `flip` and `randaugment`.
        dropout: after the patch embedding, each attention, each linear layer and before the head.
    """

    batch: int = 1
    held: int | None = None
    steps: int = 0
    epoch: bool = False
    optimiser: str = "sgd"
    augment: tuple[str, ...] = ()
    dropout: float = 0.0
    drop_path: float = 0.0
    smoothing: float = 0.0
    precision: str = "float32"
    trained: bool = False
    finetune: str = "full"

    @property
    def pictures(self) -> int:
        """Of one update."""
        return self.held or self.batch

    @property
    def differentiations(self) -> int:
        """Passes of one picture through the model that all pictures' derivatives go through, in a round."""
        passes = self.pictures if self.epoch else self.batch * max(1, self.steps)
        return self.pictures * passes

    @property
    def draws(self) -> bool:
        """Whether the client's model draws numbers that nobody else knows."""
        return bool(self.dropout or self.drop_path)

    def client(self, side: int) -> dict[str, Any]:
        """`client=` of an audit.

        Args:
            side: of the pictures in pixels.
        """
        local = bool(self.steps or self.epoch)
        transforms: dict[str, Any] = {
            "crop": {"RandomCrop": {"size": side, "padding": side // 8}},
            "flip": "RandomHorizontalFlip",
            "randaugment": "RandAugment",
        }
        return {
            "share": "delta" if local else "gradient",
            "batch_size": self.batch,
            "local_steps": self.steps or None,
            "optimizer": OPTIMISERS[self.optimiser],
            "label_smoothing": self.smoothing,
            "precision": self.precision,
            "augment": [transforms[name] for name in self.augment],
        }

    def model(self) -> dict[str, Any]:
        """Keywords of timm's constructor."""
        names = ("drop_rate", "pos_drop_rate", "proj_drop_rate", "attn_drop_rate") if self.dropout else ()
        dropped = dict.fromkeys(names, self.dropout)
        return dropped | ({"drop_path_rate": self.drop_path} if self.drop_path else {})


START = Rung()
MOVED = ("crop", "flip", "randaugment")
TOGETHER = {
    "label smoothing, bfloat16": {"smoothing": 0.1, "precision": "bfloat16"},
    "and crop, flip, RandAugment": {"augment": MOVED},
    "and dropout, drop path": {"dropout": 0.1, "drop_path": 0.1},
    "and trained weights": {"trained": True},
    "and batch 8": {"batch": 8},
    "and 10 steps of AdamW": {"steps": 10, "optimiser": "adamw"},
    "and an epoch of 64": {"steps": 0, "epoch": True, "held": 64},
    "and LoRA": {"finetune": "lora"},
}
"""Each with all that stand before it."""


def _together() -> dict[str, Rung]:
    found, rung = {}, START
    for name, changes in TOGETHER.items():
        rung = replace(rung, **changes)  # type: ignore[arg-type]
        found[f"together: {name}"] = rung
    return found


ALONE = {
    "label smoothing 0.1": Rung(smoothing=0.1),
    "bfloat16": Rung(precision="bfloat16"),
    "flip": Rung(augment=("flip",)),
    "crop": Rung(augment=("crop",)),
    "RandAugment": Rung(augment=("randaugment",)),
    "dropout 0.1": Rung(dropout=0.1),
    "drop path 0.1": Rung(drop_path=0.1),
    "trained weights": Rung(trained=True),
    "LoRA": Rung(finetune="lora"),
    "head only": Rung(finetune="head"),
    "1 step": Rung(steps=1),
    "10 steps": Rung(steps=10),
    "an epoch of 8 pictures": Rung(held=8, epoch=True),
    "1 step of AdamW": Rung(steps=1, optimiser="adamw"),
    "10 steps of AdamW": Rung(steps=10, optimiser="adamw"),
    "batch 2": Rung(batch=2),
    "batch 8": Rung(batch=8),
    "batch 64": Rung(batch=64),
}
RUNGS = {
    "start": START,
    **{f"alone: {name}": rung for name, rung in ALONE.items()},
    "two: trained weights, LoRA": Rung(trained=True, finetune="lora"),
    "two: trained weights, head only": Rung(trained=True, finetune="head"),
    **_together(),
}
