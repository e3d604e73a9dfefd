"""What one reaches without any gradient."""

import copy
from collections.abc import Callable, Collection
from logging import getLogger

import torch
from torch import Tensor, nn

from defenses.base import Batch, ClientRound, DefenseChain
from fedsim.bounds.public_prior import MOST_IMAGES, PublicPrior
from fedsim.data import ImageSet
from fedsim.data.copies import contents
from fedsim.effects import MasksPositions, MixesImages, TransformsImages, Unpublished
from fedsim.models import Normaliser
from fedsim.public_images import PublicImages, most_of

logger = getLogger(__name__)


def not_attacked(images: ImageSet, shape: tuple[int, int, int], attacked: Collection[str]) -> ImageSet:
    """Less copies of attacked ones, which a folder may hold among the images that no client has.

    Args:
        attacked: digests of those (`fedsim.data.copies.contents`).
    """
    read = min(len(images), max(MOST_IMAGES, most_of(shape)))  # no more are ever read
    digests = enumerate(contents(images.subset(range(read)))) if attacked else ()
    copies = {position for position, digest in digests if digest in attacked}
    if not copies:
        return images
    logger.warning("%d of the server's own images are copies of attacked ones, and left out", len(copies))
    return images.subset([position for position in range(read) if position not in copies])


def public_mean(held: ImageSet, shape: tuple[int, int, int]) -> Tensor:
    """The mean of the pictures that no client holds, [channels, height, width]; mid-grey where there are none."""
    count = min(MOST_IMAGES, len(held))
    return held.images(range(count)).mean(0) if count else torch.full(shape, 0.5)


def public_prior(held: ImageSet, seen: Callable[[Tensor], Tensor] | None = None) -> PublicPrior | None:
    """The moments of the same images; None where there are none.

    Args:
        seen: what a client's model sees of images; None: them.
    """
    count = min(MOST_IMAGES, len(held))
    if not count:
        return None
    images = held.images(range(count))
    return PublicPrior.of(images, None if seen is None else seen(images))


def seen_through(
    defenses: DefenseChain, model: nn.Module, batch_size: int, rng: torch.Generator
) -> Callable[[Tensor], Tensor] | None:
    """What a client's model sees of images, by draws of the server's own; None where defenses leave them as they are.

    None too where they mask positions: an attack then finds an order of patches of its own.
    """
    changed, unknown = (
        any(isinstance(effect, kinds) for effect in defenses.effects())
        for kinds in ((TransformsImages, MixesImages), (MasksPositions, Unpublished))
    )
    if not changed or unknown:
        return None
    normaliser = Normaliser(model)

    def seen(images: Tensor) -> Tensor:
        late = max(_first_rounds(defenses), default=0)  # where all of them are at work
        turn = ClientRound(late, len(images), model=copy.deepcopy(model))  # as a client of its own
        defenses.begin(turn)
        parts = []
        for batch in normaliser(images).split(batch_size):
            labels = torch.randint(2, (len(batch),), generator=rng)
            parts.append(defenses.transform_batch(Batch(batch, labels), rng).images)
        return normaliser.inverse(torch.cat(parts))

    return seen


def changed_from(defenses: DefenseChain) -> int:
    """The first round in which clients' models see changed images; 0 where no defense says so."""
    mixed = any(isinstance(effect, MixesImages) for effect in defenses.effects())
    return 0 if mixed else min(_first_rounds(defenses), default=0)


def _first_rounds(defenses: DefenseChain) -> list[int]:
    return [effect.first_round for effect in defenses.effects() if isinstance(effect, TransformsImages)]


def public_images(held: ImageSet) -> PublicImages | None:
    """Images that no client holds, with their labels; None where there are none."""
    if not len(held):
        return None
    count = min(most_of(tuple(held.images([0]).shape[1:])), len(held))
    return PublicImages.of(held.images(range(count)), held.labels[:count])
