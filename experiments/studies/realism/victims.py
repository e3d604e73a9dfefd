"""Whose pictures are attacked, at which model: digits, or a folder's; initial weights, or the study's own."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from experiments.python.load_config import load_config
from experiments.studies.harness.client import Client
from experiments.studies.harness.weights import train
from experiments.studies.realism.rungs import RUNGS, START, Rung
from fedsim.determinism import torch_generator
from fedsim.ground_truth import GroundTruth
from fedsim.metrics.accuracy import evaluate
from fedsim.observation import Observation
from fedsim.storage.durable import replacing

PUBLIC = 0.5
"""Share of the training pictures that no client holds: the model is trained on them, the guess is their mean."""
ATTACKS = (
    "patch_gradient",
    "row_space",
    "first_block",
    "gauss_newton",
    "april_optimization",
    "gradinversion",
    "labels",
)
STEPS, BATCH, LR = {"small": 600, "paper": 2000}, 64, 1e-3
"""Adam's, of the trained model."""
SIDE, PATCH = 32, 8
"""Of a folder's pictures."""


def side(settings: Mapping[str, Any]) -> int:
    """Of the pictures in pixels."""
    return 8 if settings["pictures"] is None else SIDE


def config(settings: Mapping[str, Any], rung: Rung, checkpoint: Path | None = None) -> dict[str, Any]:
    """The settings of an audit at that rung."""
    folder = settings["pictures"]
    source = {"path": folder, "verify": False} if folder is not None else {}
    model: dict[str, Any] = {"kwargs": rung.model(), "checkpoint": None if checkpoint is None else str(checkpoint)}
    if folder is not None:
        model |= {"img_size": SIDE, "patch_size": PATCH}
    groups = [f"data={'digits' if folder is None else 'imagefolder'}", "model=vit_nano", f"finetune={rung.finetune}"]
    fixed = ["simulation=inline", "tracker=[]", f"attack=[{','.join(ATTACKS)}]", f"seed={settings['seed']}"]
    return load_config(
        "audit",
        *(*fixed, *groups),
        data={"auxiliary_fraction": PUBLIC, **source},
        model=model,
        client={**rung.client(side(settings)), "device": settings.get("device", "cpu")},
        audit={"batch_size": rung.batch},
    )


class RungClients:
    """Clients at one rung, each with pictures of its own; the same pictures in all rungs.

    Attributes:
        public: [n,C,H,W] pictures that no client holds.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], out: Path) -> None:
        self.rung = RUNGS[name]
        checkpoint = trained(settings, out) if self.rung.trained else None
        self._client = Client(config(settings, self.rung, checkpoint))
        held = self._client.setup.held
        self.public: Tensor = held.images(range(len(held))).double()

    def shares(self, number: int) -> tuple[Observation, GroundTruth]:
        """What the server sees of a client, and what it may not know."""
        count = self.rung.pictures
        seen, truth, _ = self._client.shares(range(number * count, (number + 1) * count), number)
        return seen, truth

    @property
    def available(self) -> int:
        """Pictures that clients hold together."""
        return len(self._client.setup.data.train)


@cache
def victims(name: str, out: Path, *settings: tuple[str, Any]) -> RungClients:
    """Built once in a process."""
    return RungClients(name, dict(settings), out)


def trained(settings: Mapping[str, Any], out: Path) -> Path:
    """The weights of a model that has learned the public pictures, in the study's folder; made where there are none."""
    path = out / "trained.safetensors"
    if path.exists():
        return path
    client = Client(config(settings, START))
    vit, normaliser, public = client.setup.model.train(), client.setup.normaliser, client.setup.held
    images, labels = normaliser(public.images(range(len(public)))), public.labels
    rng = torch_generator(settings["seed"], "realism")
    train(vit, images, labels, STEPS[settings["scale"]], BATCH, LR, rng)
    out.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        save_file({name: tensor.detach().contiguous() for name, tensor in vit.state_dict().items()}, partial)
    return path


def accuracy(settings: Mapping[str, Any], out: Path) -> float:
    """Of the trained model on pictures of neither the public nor the clients'."""
    client = Client(config(settings, START, trained(settings, out)))
    return evaluate(client.setup.model, client.setup.data.test, client.setup.normaliser).accuracy
