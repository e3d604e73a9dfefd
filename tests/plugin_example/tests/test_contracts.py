"""The contracts of fedsim's own parts, kept by these."""

import pytest
import torch
from fedsim_plugin_example.attack import BiasRows
from fedsim_plugin_example.data import Shapes
from fedsim_plugin_example.defense import RandomMask
from torch import nn

import fedsim
from clients.replay import replay
from fedsim.errors import ConfigError
from fedsim.models import ModelSpec
from fedsim.testing import (
    check_attack_replay,
    check_beats_noise,
    check_effect,
    check_identity,
    check_refusal,
    check_replay,
    check_source,
    example_update,
    observe,
)

PERCEPTRON = ModelSpec("wide_perceptron_16", 4)
PICTURES = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(6))


def test_defense():
    check_identity(RandomMask(1.0).transform_update)
    check_effect(RandomMask(0.5).transform_update)
    check_replay(RandomMask(0.5).transform_update, random=True)
    with pytest.raises(ConfigError, match="keep=0: must be more than 0"):
        RandomMask(0)


def test_the_mask_is_unbiased():
    update, rng = example_update(), torch.Generator().manual_seed(0)
    draws = torch.stack([RandomMask(0.25).transform_update(update, rng).tensors["weight"] for _ in range(4000)])
    kept = (draws != 0).double().mean()
    assert abs(kept - 0.25) < 0.001
    error = (draws.mean(dim=0) - update.tensors["weight"]) / update.tensors["weight"].abs()
    # Each draw of a coordinate has the relative variance (1 - keep) / keep = 3.
    assert error.abs().max() < 6 * (3 / 4000) ** 0.5


@pytest.mark.parametrize("keep", [1.0, 0.3])
def test_attack(keep):
    observation = observe(PERCEPTRON, PICTURES[:1], [1], RandomMask(keep).transform_update, replayer=replay)
    check_beats_noise(BiasRows(), observation, PICTURES[:1], decibels=60)
    check_attack_replay(BiasRows(), observation)
    certificate = BiasRows()(observation, torch.Generator(), torch.device("cpu")).certificate
    assert certificate.certified == (keep == 1.0), "what a mask drew cannot be computed once more"


class GreyedInTraining(nn.Module):
    """Reads the mean of the colours, as long as it is trained."""

    def __init__(self):
        super().__init__()
        self.body = PERCEPTRON.build(0)

    def forward(self, images):
        return self.body(images.mean(dim=1, keepdim=True).expand_as(images) if self.training else images)


def test_what_a_model_makes_of_an_image_is_not_certified_as_the_image():
    observation = fedsim.observe(GreyedInTraining().train(), PICTURES[:1], [1])
    certificate = BiasRows()(observation, torch.Generator(), torch.device("cpu")).certificate
    assert certificate.status == "uncertified"
    assert "changes its input before body." in certificate.reason


def test_what_the_attack_refuses_and_does_not_certify():
    both = observe(PERCEPTRON, PICTURES, [1, 2])
    check_refusal(BiasRows(), both, "at most 1 can be served")
    mixed = BiasRows().run(both, torch.Generator(), torch.device("cpu"))
    assert mixed.certificate.values["proven"] < 0.02  # pixels in which the pictures are alike
    vit = observe(ModelSpec("vit_nano_patch2_8", 4), torch.rand(1, 3, 8, 8), [1])
    check_refusal(BiasRows(), vit, "not the picture as a whole")


def test_python_knows_its_parts_by_name():
    seen = fedsim.observe(PERCEPTRON.build(0), PICTURES[:1], [1], defense=[{"random_mask": {"keep": 0.3}}])
    result = fedsim.score(fedsim.attack("bias_rows", seen), PICTURES[:1])
    assert result.status == "done", result.reason
    assert min(one.psnr for one in result.scores.images) > 60


def test_data():
    check_source(Shapes(count=40))
    shapes = Shapes(count=40, seed=1).load()
    assert shapes.train["label"][:] != Shapes(count=40).load().train["label"][:]
    with pytest.raises(ConfigError, match="count=3: must be at least 4"):
        Shapes(count=3).load()
