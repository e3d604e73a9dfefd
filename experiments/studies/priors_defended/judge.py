"""A small classifier of public pictures, whose features tell how alike two pictures are to a network."""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.engine.setup import Setup
from experiments.prior.training import Training
from fedsim.determinism import seeded_globals, torch_generator
from fedsim.metrics.features import feature_distance
from fedsim.settings.trained import TrainingSchedule

STEPS, BATCH = 800, 64


class SmallClassifier(nn.Module):
    """Three strided convolutions and a linear layer; `maps` are the features after each convolution."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, 2, padding=1) for a, b in ((3, 32), (32, 64), (64, 128)))
        self.last = nn.Linear(128, num_classes)

    def maps(self, images: Float[Tensor, "batch 3 h w"]) -> list[Float[Tensor, "batch _ _ _"]]:
        result, features = [], 2.0 * images - 1.0
        for layer in self.layers:
            features = F.relu(layer(features))
            result.append(features)
        return result

    def forward(self, images: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch classes"]:
        scores: Tensor = self.last(self.maps(images)[-1].mean(dim=(2, 3)))
        return scores


@dataclass(frozen=True)
class Judge:
    """A trained classifier that compares pictures."""

    network: SmallClassifier

    @torch.no_grad()
    def between(
        self, found: Float[Tensor, "batch 3 h w"], truth: Float[Tensor, "batch 3 h w"]
    ) -> Float[Tensor, " batch"]:
        return feature_distance(self.network.maps(found), self.network.maps(truth))


def train_judge(setup: Setup, left_out: tuple[str, ...], folder: Path) -> Judge:
    """On the public pictures of all classes but those left out; goes on where an earlier call stopped."""
    data, seed = setup.data, setup.config.seed
    names = {data.class_names.index(name) for name in left_out}
    places = [place for place, label in enumerate(data.auxiliary.labels.tolist()) if label not in names]
    images = data.auxiliary.subset(places)
    with seeded_globals(seed, "judge"):
        network = SmallClassifier(data.num_classes)
    training = Training(network, TrainingSchedule(STEPS, BATCH, 2e-3), folder / "judge.safetensors")

    def loss_at(step: int) -> Tensor:
        chosen = torch.randint(len(images), (BATCH,), generator=torch_generator(seed, "judge-step", step))
        return F.cross_entropy(network(images.images(chosen)), images.labels[chosen])

    training.run(loss_at, lambda step, loss: None)
    return Judge(network.eval())
