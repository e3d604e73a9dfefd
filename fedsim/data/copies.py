"""Equal images, by what their numbers are: how often one stands among a client's, and how many clients hold it."""

from collections import Counter
from collections.abc import Iterable, Iterator
from logging import getLogger

from fedsim.data.image_set import CHUNK, ImageSet
from fedsim.errors import ConfigError
from fedsim.ground_truth import content_of

logger = getLogger(__name__)


def contents(images: ImageSet) -> Iterator[str]:
    """The digest of each image, a few of them in memory at once."""
    for start in range(0, len(images), CHUNK):
        for image in images.images(range(start, min(len(images), start + CHUNK))):
            yield content_of(image)


def readable_contents(images: ImageSet) -> list[str]:
    """The digests of those images that can be read: with another one the update fails that needs it, and no more."""
    try:
        return list(contents(images))
    except ConfigError as error:
        if len(images) == 1:
            logger.debug("not compared: %s", error)
            return []
    halves = range(len(images) // 2), range(len(images) // 2, len(images))
    return [one for half in halves for one in readable_contents(images.subset(half))]


def most_copies(images: ImageSet) -> int:
    """How often the image that is there most often is there; 1 where all are different, or there is none."""
    return max(Counter(contents(images)).values(), default=1)


def most_holders(clients: Iterable[ImageSet]) -> int:
    """How many clients hold the image that most of them hold; 1 where no two hold the same one."""
    return max(Counter(one for images in clients for one in set(contents(images))).values(), default=1)
