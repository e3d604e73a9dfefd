"""What a generator gives without any gradient: the baseline of every attack that uses it."""

import torch

from attacks.base import Attack, Certificate, Reconstruction
from attacks.generative.generator import Generator
from fedsim.errors import one_of, require
from fedsim.observation import Observation

PICKS = ("mean", "best")


class GeneratorSamples(Attack):
    """Pictures that the generator draws, whatever was shared.

    Args:
        samples: how many are drawn.
        pick: `mean`: their mean, as every picture of the batch. `best`: all of them are given, and the scorer, which
            knows the truth, holds each original against the one that suits it: a bound for luck, no attack.
    """

    baseline = True

    def __init__(self, generator: Generator, samples: int = 64, pick: str = "mean") -> None:
        require("samples", samples, samples >= 1, "1 or more")
        one_of("pick", pick, PICKS)
        self.generator, self.samples, self.pick = generator, samples, pick
        self.learned_from = generator.learned_from

    def check_image_shape(self, image_shape: tuple[int, ...]) -> None:
        self.generator.check_image_shape(image_shape)

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Raises NotApplicable where the generator makes pictures of another shape."""
        generator = self.generator.to(device)
        generator.check(observation.image_shape)
        count = observation.num_images
        drawn = torch.randn(max(self.samples, count), generator.latent, generator=rng).to(device)
        with torch.no_grad():
            # Of any class, by a generator that knows how; else each of one drawn at random.
            labels = None if hasattr(generator.module, "trained_on") else _any_classes(generator, drawn, rng)
            images = generator.pictures(drawn, labels).clamp(0, 1)
        if self.pick == "mean":
            images = images.mean(dim=0, keepdim=True).expand(count, -1, -1, -1).contiguous()
        return Reconstruction(images, certificate=Certificate("none", "drawn without any gradient"))


def _any_classes(generator: Generator, drawn: torch.Tensor, rng: torch.Generator) -> torch.Tensor | None:
    if not generator.num_classes:
        return None
    return torch.randint(generator.num_classes, (len(drawn),), generator=rng).to(drawn.device)
