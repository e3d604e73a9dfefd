"""Settings of `fedsim-prior`, checked before anything starts; and the pictures that it may learn from."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from attacks.learned.network import InversionNetwork
from experiments.engine.setup import Setup
from fedsim.data import ImageSet
from fedsim.errors import ConfigError, nearest
from fedsim.models.generator import ConvGenerator
from fedsim.settings.components import check_arguments
from fedsim.settings.composition import Config

KINDS = ("generator", "lti")
SHOWN = 16
"""Pictures of each sort on the sample sheet."""


@dataclass(frozen=True)
class TrainingSchedule:
    """How long and how fast a network is trained.

    Attributes:
        lr: of Adam at its highest; a cosine to 0 over all steps, after a linear rise over the first twentieth.
        save_every: steps after which a killed training can go on.
    """

    steps: int
    batch_size: int
    lr: float
    save_every: int = 200

    def lr_at(self, step: int) -> float:
        rise = max(1, self.steps // 20)
        return self.lr * min(1.0, (step + 1) / rise) * 0.5 * (1.0 + math.cos(math.pi * step / self.steps))


@dataclass(frozen=True)
class GeneratorSettings:
    """A variational autoencoder whose decoder is the generator.

    Attributes:
        channels: of the feature maps, from the smallest to the largest.
        conditional: the generator is told classes.
        beta: weight of the divergence of a pixel's share of the code from a standard normal one.
        any_class: share of the pictures whose class is not told: so the generator learns to do without.
    """

    latent: int
    channels: list[int]
    conditional: bool
    beta: float
    any_class: float
    flip: bool
    steps: int
    batch_size: int
    lr: float
    save_every: int

    @property
    def schedule(self) -> TrainingSchedule:
        return TrainingSchedule(self.steps, self.batch_size, self.lr, self.save_every)


@dataclass(frozen=True)
class InversionSettings:
    """LTI's network.

    Attributes:
        updates: how many updates of simulated clients it is trained on.
        any_label: share of the pictures that are given a label at random: a network that has seen updates of some
            classes alone, whose rows of the head are all that move, is lost on those of others.
        bins: numbers that an update is hashed to; None: all its entries.
    """

    updates: int
    any_label: float
    bins: int | None
    hidden: int
    depth: int
    decoder: str
    code: int
    steps: int
    batch_size: int
    lr: float
    save_every: int
    network: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        chosen = {"hidden": self.hidden, "depth": self.depth, "decoder": self.decoder, "code": self.code}
        object.__setattr__(self, "network", chosen)

    @property
    def schedule(self) -> TrainingSchedule:
        return TrainingSchedule(self.steps, self.batch_size, self.lr, self.save_every)


def check_prior(config: Config) -> GeneratorSettings | InversionSettings:
    """The settings of what is to be trained.

    Raises:
        ConfigError: naming the key, the value and what would be right.
    """
    kind, prior = config["kind"], config["prior"]
    if kind not in KINDS:
        raise ConfigError("kind", kind, f"one of {', '.join(KINDS)}.{nearest(str(kind), KINDS)}")
    if not isinstance(prior["exclude_classes"], list):
        raise ConfigError("prior.exclude_classes", prior["exclude_classes"], "a list of names of classes: [cat,dog]")
    _whole("prior.validation", prior["validation"], 1)
    _whole("threads", config["threads"], 1)
    chosen = prior[kind]
    target: Any = GeneratorSettings if kind == "generator" else InversionSettings
    check_arguments(f"prior.{kind}", chosen, target)
    settings: GeneratorSettings | InversionSettings = target(**chosen)
    for key in ("steps", "batch_size", "save_every"):
        _whole(f"prior.{kind}.{key}", chosen[key], 1)
    if not settings.lr > 0:
        raise ConfigError(f"prior.{kind}.lr", settings.lr, "a positive number")
    if isinstance(settings, GeneratorSettings):
        if not settings.beta >= 0:
            raise ConfigError("prior.generator.beta", settings.beta, "a number that is not negative")
        if not 0 <= settings.any_class <= 1:
            raise ConfigError("prior.generator.any_class", settings.any_class, "a share, 0 to 1")
        with torch.device("meta"):
            ConvGenerator(settings.latent, channels=settings.channels)
        return settings
    _whole("prior.lti.updates", settings.updates, 2)
    if not 0 <= settings.any_label <= 1:
        raise ConfigError("prior.lti.any_label", settings.any_label, "a share, 0 to 1")
    if (held := prior["validation"]) < (batch := config["client"]["batch_size"]):
        raise ConfigError("prior.validation", held, f"at least the {batch} pictures of a batch")
    with torch.device("meta"):
        InversionNetwork(1, 1, (3, 4, 4), **settings.network)
    if settings.bins is not None:
        _whole("prior.lti.bins", settings.bins, 1)
    return settings


@dataclass(frozen=True)
class PublicPictures:
    """What no client holds, less the classes that are left out.

    Attributes:
        train: what is learned from.
        validation: of the same classes, for the figures at the end.
        excluded: of the classes left out; may be empty.
        classes: numbers of the classes that are learned from.
    """

    train: ImageSet
    validation: ImageSet
    excluded: ImageSet
    classes: tuple[int, ...]


def public_pictures(setup: Setup) -> PublicPictures:
    """Divide the auxiliary pictures.

    Raises:
        ConfigError: a class that the data do not have, or too few pictures.
    """
    config, data = setup.config, setup.data
    prior, names = config["prior"], data.class_names
    excluded = [str(name) for name in prior["exclude_classes"]]  # a class may be called 3
    for name in excluded:
        if name not in names:
            some = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
            raise ConfigError("prior.exclude_classes", name, f"a class of the data: {some}{nearest(name, names)}")
    left_out = {names.index(name) for name in excluded}
    labels = data.auxiliary.labels.tolist()
    kept = [place for place, label in enumerate(labels) if label not in left_out]
    others = [place for place, label in enumerate(labels) if label in left_out]
    held = prior["validation"]
    if len(kept) <= held:
        fraction = config["data"].get("auxiliary_fraction")
        wanted = f"more than {held} public pictures (prior.validation), not {len(kept)}: a larger share"
        raise ConfigError("data.auxiliary_fraction", fraction, wanted)
    batch = config["client"]["batch_size"]
    if config["kind"] == "lti" and len(kept) - held < batch:
        raise ConfigError("client.batch_size", batch, f"at most the {len(kept) - held} public pictures to learn from")
    every = data.auxiliary
    classes = tuple(sorted({labels[place] for place in kept[:-held]}))
    return PublicPictures(every.subset(kept[:-held]), every.subset(kept[-held:]), every.subset(others[:held]), classes)


def _whole(key: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(key, value, f"a whole number of at least {least}")
