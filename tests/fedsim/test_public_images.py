import pytest
import torch

from fedsim.errors import ConfigError
from fedsim.observation import Observation
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


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (torch.full((2, 3, 2, 2), 128, dtype=torch.uint8), None, "public_images=torch.uint8 .*floating-point"),
        (torch.full((2, 3, 2, 2), 1.5), None, r"public_images=1.5 … 1.5: must be values in \[0, 1\]"),
        (torch.full((2, 3, 2, 2), torch.nan), None, "public_images=nan"),
        (torch.zeros(2, 3, 2, 2), torch.tensor([0.5, 1.0]), "public_labels=torch.float32"),
        (torch.zeros(2, 3, 2, 2), [1], "public_labels=1"),
        (torch.zeros(2, 3, 2, 2), [1, 2], "public_labels=2: must be classes from 0 to 1: the model has 2 outputs"),
        (torch.zeros(2, 3, 2, 2), [-1, 1], "public_labels=-1"),
    ],
)
def test_what_a_server_is_given_is_checked_as_clients_images_are(images, labels, words):
    seen = own_observation()
    with pytest.raises(ConfigError, match=words):
        seen.with_public_images(images, labels)


def test_labels_may_be_a_list():
    found = own_observation().with_public_images(torch.zeros(2, 3, 2, 2), [1, 0])
    assert found.public_images.labels.tolist() == [1, 0]


def own_observation():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
    return Observation.of(model, list(model.parameters()), image_shape=(3, 2, 2))
