"""`prior` of `fedsim-prior`: the networks that attacks bring along, and how they are trained."""

import math
from dataclasses import dataclass
from typing import Annotated, Any

from fedsim.settings.schema import Rule, at_least, is_number, list_of, number

Count = Annotated[int, at_least(1)]
Share = Annotated[float, number(0.0, 1.0, words="a share, 0 to 1")]


@dataclass(frozen=True)
class TrainingSchedule:
    """How long and how fast a network is trained.

    Attributes:
        lr: of Adam at its highest; a cosine to 0 over all steps, after a linear rise over the first twentieth.
        save_every: steps after which a killed training can go on.
    """

    steps: Count
    batch_size: Count
    lr: Annotated[float, Rule("a positive number", lambda value: is_number(value, 0.0) and value > 0)]
    save_every: Count = 200

    def lr_at(self, step: int) -> float:
        rise = max(1, self.steps // 20)
        return self.lr * min(1.0, (step + 1) / rise) * 0.5 * (1.0 + math.cos(math.pi * step / self.steps))


@dataclass(frozen=True, kw_only=True)
class GeneratorSettings(TrainingSchedule):
    """A variational autoencoder whose decoder is the generator.

    Attributes:
        channels: of the feature maps, from the smallest to the largest.
        conditional: the generator is told classes.
        beta: weight of the divergence of a pixel's share of the code from a standard normal one.
        any_class: share of the pictures whose class is not told: so the generator learns to do without. Of a
            conditional one above 0 and below 1: at 0 it does not learn what "any" is, at 1 no class.
    """

    latent: int
    channels: list[int]
    conditional: bool
    beta: Annotated[float, number(0.0, words="a number that is not negative")]
    any_class: Share
    flip: bool


@dataclass(frozen=True, kw_only=True)
class InversionSettings(TrainingSchedule):
    """LTI's network.

    Attributes:
        updates: how many updates of simulated clients it is trained on.
        any_label: share of the pictures that are given a label at random: a network that has seen updates of some
            classes alone, whose rows of the head are all that move, is lost on those of others.
        bins: numbers that an update is hashed to; None: all its entries.
    """

    updates: Annotated[int, at_least(2)]
    any_label: Share
    bins: Annotated[int | None, at_least(1)]
    hidden: int
    depth: int
    decoder: str
    code: int

    @property
    def network(self) -> dict[str, Any]:
        return {"hidden": self.hidden, "depth": self.depth, "decoder": self.decoder, "code": self.code}


@dataclass(frozen=True, kw_only=True)
class LearnedSettings:
    """What is learned from, and the networks."""

    exclude_classes: Annotated[list[Any], list_of(lambda _: True, "a list of names of classes: [cat,dog]")]
    validation: Count
    generator: GeneratorSettings
    lti: InversionSettings
