import pytest
import torch

from fedsim.errors import ConfigError
from fedsim.public_images import MOST, MOST_BYTES, PublicImages, most_of


def test_8_bit_images_come_back_as_they_were(rng):
    pixels = torch.randint(256, (5, 3, 4, 4), generator=rng, dtype=torch.uint8)
    held = PublicImages.of(pixels.float() / 255.0, torch.tensor([0, 1, 1, 2, 0]))
    assert torch.equal(held.pixels, pixels)
    assert torch.equal(held.images(), pixels.float() / 255.0)
    assert held.labels.tolist() == [0, 1, 1, 2, 0]


def test_the_digest_is_of_images_and_labels(rng):
    images = torch.rand(3, 1, 2, 2, generator=rng)
    digests = {
        PublicImages.of(images).digest(),
        PublicImages.of(images, torch.tensor([0, 1, 2])).digest(),
        PublicImages.of(images, torch.tensor([0, 1, 1])).digest(),
        PublicImages.of(images.flip(0)).digest(),
    }
    assert len(digests) == 4
    assert PublicImages.of(images.clone()).digest() in digests


def test_no_more_travel_than_fit():
    assert most_of((3, 8, 8)) == MOST
    assert most_of((3, 224, 224)) == MOST_BYTES // (3 * 224 * 224)
    assert len(PublicImages.of(torch.zeros(MOST + 3, 1, 1, 1), torch.zeros(MOST + 3, dtype=torch.long))) == MOST


def test_as_many_labels_as_images_are_wanted():
    with pytest.raises(ConfigError, match="public_labels=2"):
        PublicImages.of(torch.zeros(3, 1, 2, 2), torch.tensor([0, 1]))
