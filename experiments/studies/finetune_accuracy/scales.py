"""The public model, the federation and the recipes, as settings of `fedsim`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.python.load_config import load_config
from experiments.studies.harness.federation import UNOBSERVED, one_cycle
from fedsim.settings.composition import Config


@dataclass(frozen=True)
class Recipe:
    """Overrides of `fedsim`, and the rates of the clients' AdamW that are tried, ascending."""

    overrides: Sequence[str]
    rates: Sequence[float] = (1e-3, 3e-3, 1e-2)


RECIPES = {
    "full": Recipe(("finetune=full",), (1e-4, 3e-4, 1e-3)),
    "lora": Recipe(("finetune=lora",)),
    "lora all": Recipe(("finetune=lora", "finetune.targets=[qkv,proj,fc1,fc2]")),
    "last_k": Recipe(("finetune=last_k",), (3e-4, 1e-3, 3e-3)),
    "bias": Recipe(("finetune=bias",)),
    "norm": Recipe(("finetune=norm",)),
    "head": Recipe(("finetune=head",), (3e-3, 1e-2, 3e-2)),
}
"""`lora all`: factors beside the layers of the MLP too. Fewer parameters bear a greater rate."""
HELD_OUT = 0.2
"""Of the clients' training pictures, where a learning rate is chosen."""


@dataclass(frozen=True)
class Scale:
    """How long and with what.

    Attributes:
        model: overrides of `fedsim`, of the model and its pictures' size.
        side: of these pictures.
        public_steps: of AdamW, of batches of `public_batch`, for the public model.
        clients, rounds, steps, batch: of the federations; steps are a client's in a round.
        search_rounds: for which each rate is tried.
        seeds: of the comparison.
    """

    model: Sequence[str]
    side: int
    public_steps: int
    public_batch: int
    clients: int
    rounds: int
    steps: int
    batch: int
    search_rounds: int
    seeds: int
    public_rate: float = 1e-3

    def pretraining(self, pictures: Path, device: str, threads: int, seed: int) -> Config:
        """Settings of the training of the public model: one client, whose gradients AdamW follows."""
        crop = f"{{RandomCrop: {{size: {self.side}, padding: {self.side // 8}}}}}"
        config = _composed(
            pictures,
            [
                *self.model,
                *_fixed(device, threads, seed),
                "strategy=fedsgd",
                "num_clients=1",
                f"num_rounds={self.public_steps}",
                f"evaluate_every={self.public_steps}",
                f"client.batch_size={self.public_batch}",
                f"client.augment=[{crop},RandomHorizontalFlip]",
                "client.label_smoothing=0.1",
            ],
        )
        config["strategy"] |= one_cycle(self.public_rate, self.public_steps, warm_up=0.1)
        return config

    def federation(
        self,
        recipe: str,
        rate: float,
        rounds: int,
        checkpoint: Path,
        pictures: Path,
        device: str,
        threads: int,
        seed: int,
    ) -> Config:
        """Settings of a run of FedAvg from the public model."""
        config = _composed(
            pictures,
            [
                *self.model,
                *RECIPES[recipe].overrides,
                *_fixed(device, threads, seed),
                "strategy=fedavg",
                f"num_clients={self.clients}",
                f"num_rounds={rounds}",
                f"evaluate_every={rounds}",
                f"client.batch_size={self.batch}",
                f"client.local_steps={self.steps}",
                "client.optimizer._target_=torch.optim.AdamW",
                f"client.optimizer.lr={rate}",
                "client.augment=[RandomHorizontalFlip]",
            ],
        )
        config["model"]["checkpoint"] = str(checkpoint)
        return config


SCALES = {
    "small": Scale(
        model=("model=vit_tiny", "model.img_size=32", "model.patch_size=8", "+model.kwargs={depth: 4}"),
        side=32,
        public_steps=1200,
        public_batch=64,
        clients=5,
        rounds=8,
        steps=10,
        batch=32,
        search_rounds=3,
        seeds=3,
    ),
    "paper": Scale(
        model=("model=vit_tiny_4_32",),
        side=32,
        public_steps=40_000,
        public_batch=128,
        clients=20,
        rounds=100,
        steps=20,
        batch=32,
        search_rounds=30,
        seeds=5,
    ),
}


def _fixed(device: str, threads: int, seed: int) -> list[str]:
    return [f"seed={seed}", f"client.device={device}", f"simulation.threads={threads}"]


def _composed(pictures: Path, overrides: Sequence[str]) -> Config:
    folder = ["data=imagefolder", "data.auxiliary_fraction=0", f"data.test_fraction={HELD_OUT}", "data.verify=false"]
    data: dict[str, Any] = {"path": str(pictures)}
    config = load_config("run", *folder, *UNOBSERVED, *overrides, data=data)
    return {key: value for key, value in config.items() if key not in ("run_dir", "resume")}
