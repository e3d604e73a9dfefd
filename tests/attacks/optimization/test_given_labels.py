"""Labels that are known beforehand, in place of a rule that reads them off a head."""

import numpy as np
import pytest
import torch
from torch import nn

import fedsim
from attacks.running import GIVEN

WAYS = [[3], (3,), torch.tensor([3]), np.array([3])]


class Reversed(nn.Module):
    """Its scores are its head's in another order: no label can be read off."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(48, 24), nn.Sigmoid(), nn.Linear(24, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images).flip(1)


@pytest.fixture
def images(rng):
    return torch.rand(2, 3, 4, 4, generator=rng)


def observed(images, labels):
    torch.manual_seed(0)
    return fedsim.observe(Reversed(), images, labels)


@pytest.mark.parametrize("labels", WAYS, ids=lambda labels: type(labels).__name__)
def test_a_model_without_a_linear_head_is_attacked_by_them_and_no_label_is_credited(images, labels):
    result = fedsim.score(fedsim.attack("gauss_newton", observed(images[:1], [3]), labels=labels), images[:1], [3])
    assert result.certified
    assert result.psnr[0] > 60
    assert result.labels is None
    assert result.scores.labels is None
    assert result.to_json()["label_exact"] is None
    assert GIVEN in result.reason
    assert "label" not in result.certificate.reason


def test_images_of_a_batch_are_in_the_order_of_their_labels(images):
    result = fedsim.score(fedsim.attack("gauss_newton", observed(images, [3, 7]), labels=[3, 7]), images, [3, 7])
    assert result.certified
    assert (result.images - images).abs().max() < 1e-3


def test_who_goes_on_from_a_search_takes_its_labels(images):
    seen = observed(images[:1], [3])
    settings = {"labels": [3], "steps": 3, "then": {"gauss_newton": {}}}
    result = fedsim.attack("inverting_gradients", seen, **settings)
    assert result.certified
    assert result.labels is None
    assert GIVEN in result.reason


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        ("gauss_newton", "labels=[…] states them, with_public_images may tell them"),
        (
            "inverting_gradients",
            "labels=[…] states them, labels=joint searches for them too, with_public_images may tell them",
        ),
        ("labels", "labelled images of the server's own would tell (with_public_images)"),
    ],
)
def test_without_them_the_refusal_says_what_would_help(images, name, ways):
    result = fedsim.attack(name, observed(images[:1], [3]))
    assert result.status == "refused"
    assert result.reason == f"the model has no linear head, or gives other scores than its head's: {ways}"


@pytest.mark.parametrize("name", ["gauss_newton", "inverting_gradients"])
@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([3, 4], r"=\[3, 4\]: must be one class for each image of the update, which has 1"),
        ([10], r"=\[10\]: must be classes of the model, 0 … 9"),
        ([-1], "must be classes in a list, whole numbers from 0"),
        ([3.0], "must be classes in a list, whole numbers from 0"),
        ([True], "must be classes in a list, whole numbers from 0"),
        ([], "must be classes in a list, whole numbers from 0"),
        (3, "must be classes in a list, whole numbers from 0"),
        (torch.tensor([3.0]), "must be classes in a list, whole numbers from 0"),
        (torch.tensor([[3]]), "must be classes in a list, whole numbers from 0"),
        ("three", "must be joint, one of auto, idlg, .* or classes in a list"),
    ],
)
def test_what_cannot_be_its_labels_is_refused_at_once(images, name, labels, words):
    with pytest.raises(fedsim.ConfigError, match=rf"^attack\.{name}\.labels.*{words}"):
        fedsim.attack(name, observed(images[:1], [3]), labels=labels)


def test_those_of_who_goes_on_are_checked_too(images):
    with pytest.raises(fedsim.ConfigError, match=r"^attack\.dlg\.then\.labels=\[3, 3\]: must be one class for each"):
        fedsim.attack("dlg", observed(images[:1], [3]), steps=1, then={"gauss_newton": {"labels": [3, 3]}})
