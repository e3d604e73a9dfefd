"""What `fedsim-prior` trains, and the pictures that it may learn from."""

from dataclasses import dataclass
from functools import cached_property
from logging import getLogger

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.learned.network import InversionNetwork
from experiments.engine.setup import Setup
from fedsim.data import FederatedData, ImageSet
from fedsim.data.copies import contents, readable_contents
from fedsim.errors import ConfigError, nearest
from fedsim.models.generator import ConvGenerator
from fedsim.settings.commands import PriorConfig
from fedsim.settings.composition import image_side
from fedsim.settings.trained import GeneratorSettings, InversionSettings

logger = getLogger(__name__)

SHOWN = 16
"""Pictures of each sort on the sample sheet."""

TOGETHER = 256
"""Pictures that are read at once where all are."""


def chosen_network(config: PriorConfig) -> GeneratorSettings | InversionSettings:
    """The settings of what is to be trained.

    Raises:
        ConfigError: no such network can be built, or it would not learn all that it is asked for.
    """
    generator, side = config.prior.generator, image_side(config.model)
    if config.simulation.engine != "inline":
        raise ConfigError("simulation", config.simulation.engine, "inline: a prior is trained in this process")
    try:
        with torch.device("meta"):
            if config.kind == "lti":
                InversionNetwork(1, 1, (3, side, side), **config.prior.lti.network)
                return config.prior.lti
            ConvGenerator(generator.latent, side, generator.channels)
    except ConfigError as error:
        part, setting = error.key.split(".")
        known = f"prior.{'lti' if part == 'network' else part}.{setting}"
        raise error.under("model.img_size" if setting == "side" else known) from None
    if generator.conditional and not 0.0 < generator.any_class < 1.0:
        wanted = "above 0 and below 1 with conditional=true"
        raise ConfigError("prior.generator.any_class", generator.any_class, wanted)
    return generator


@dataclass(frozen=True)
class PriorImages:
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

    @cached_property
    def mean(self) -> Float[Tensor, "c h w"]:
        """Of those that are learned from, a few of them in memory at once."""
        total = torch.zeros(self.train.images([0]).shape[1:], dtype=torch.float64)
        for start in range(0, len(self.train), TOGETHER):
            total += self.train.images(range(start, min(len(self.train), start + TOGETHER))).double().sum(dim=0)
        return (total / len(self.train)).float()


def prior_images(setup: Setup) -> PriorImages:
    """Divide the auxiliary pictures.

    Raises:
        ConfigError: a class that the data do not have, or too few pictures.
    """
    config, data = setup.config, setup.data
    assert isinstance(config, PriorConfig)
    prior = config.prior
    names = data.class_names
    excluded = [str(name) for name in prior.exclude_classes]  # a class may be called 3
    for name in excluded:
        if name not in names:
            some = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
            raise ConfigError("prior.exclude_classes", name, f"a class of the data: {some}{nearest(name, names)}")
    left_out = {names.index(name) for name in excluded}
    every = held_by_no_client(data)
    labels = every.labels.tolist()
    kept = [place for place, label in enumerate(labels) if label not in left_out]
    others = [place for place, label in enumerate(labels) if label in left_out]
    held = prior.validation
    if len(kept) <= held:
        fraction = config.data.get("auxiliary_fraction")
        wanted = f"more than {held} public pictures (prior.validation), not {len(kept)}: a larger share"
        raise ConfigError("data.auxiliary_fraction", fraction, wanted)
    batch = config.client.batch_size
    if config.kind == "lti" and len(kept) - held < batch:
        raise ConfigError("client.batch_size", batch, f"at most the {len(kept) - held} public pictures to learn from")
    classes = tuple(sorted({labels[place] for place in kept[:-held]}))
    return PriorImages(every.subset(kept[:-held]), every.subset(kept[-held:]), every.subset(others[:held]), classes)


def held_by_no_client(data: FederatedData) -> ImageSet:
    """The auxiliary pictures less copies of clients', which a folder may hold under other names."""
    digests = list(contents(data.auxiliary.uncached()))
    held = frozenset(readable_contents(data.train.uncached())) if digests else frozenset()
    kept = [place for place, digest in enumerate(digests) if digest not in held]
    if copies := len(digests) - len(kept):
        logger.warning("%d of the public pictures are copies of clients' ones, and left out", copies)
    return data.auxiliary.subset(kept)
