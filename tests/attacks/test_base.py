"""What an attack gives is checked before anybody scores it."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from attacks.base import Attack, Needs, NotApplicable, Reconstruction
from attacks.running import run_built
from fedsim.models import ModelSpec

CPU = torch.device("cpu")


class Gives(Attack):
    """Whatever it was built with."""

    def __init__(self, result: object, needs: Needs | None = None) -> None:
        self.result = result
        self.needs = needs or Needs()

    def run(self, observation, rng, device):
        return self.result


@pytest.fixture
def observation(tools, rng):
    return tools.observe(ModelSpec("vit_nano_patch2_8", 10), torch.rand(1, 3, 8, 8, generator=rng), [3])


def call(attack, observation):
    return attack(observation, torch.Generator(), CPU)


def test_a_tensor_is_no_reconstruction(observation):
    with pytest.raises(TypeError, match=r"Gives\.run gave a Tensor: a Reconstruction is wanted"):
        call(Gives(torch.zeros(1, 3, 8, 8)), observation)


IMAGES = r": \[B,C,H,W\] in \[0, 1\] with \(3, 8, 8\) for \[C,H,W\] is wanted"
FLOATING = rf": a tensor of floating point {IMAGES[2:]}"
LABELS = r": a tensor \[B\] of whole numbers, classes 0 … 9, is wanted"


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"images": torch.zeros(3, 8, 8)}, ValueError, r"images of shape \(3, 8, 8\)" + IMAGES),
        ({"images": torch.zeros(1, 3, 7, 8)}, ValueError, r"images of shape \(1, 3, 7, 8\)" + IMAGES),
        ({"images": np.zeros((1, 3, 8, 8))}, TypeError, "images of type ndarray" + FLOATING),
        ({"images": torch.zeros(1, 3, 8, 8).byte()}, TypeError, r"images of type torch\.uint8" + FLOATING),
        ({"labels": [3]}, TypeError, "labels of type list" + LABELS),
        ({"labels": torch.tensor([3.0])}, TypeError, r"labels of type torch\.float32" + LABELS),
        ({"labels": torch.tensor([[3]])}, ValueError, r"labels of shape \(1, 1\)" + LABELS),
        ({"labels": torch.tensor([103])}, ValueError, "the label 103" + LABELS),
        ({"labels": torch.tensor([-1])}, ValueError, "the label -1" + LABELS),
    ],
)
def test_what_cannot_be_of_the_update_is_one_line_that_says_what_is_wanted(observation, given, error, words):
    attack = Gives(Reconstruction(**given))
    with pytest.raises(error, match=rf"^Gives\.run gave {words}$"):
        call(attack, observation)
    attack.run_many = lambda observations, rngs, device: [attack.result for _ in observations]
    for result in run_built([observation, observation], "gives", attack, 0, CPU):
        assert re.fullmatch(rf"{error.__name__}: Gives\.run gave {words}", result.reason)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nothing_but_nan_is_a_failure(observation, value):
    observation = replace(observation, protocol=replace(observation.protocol, batch_size=2))
    observation = replace(observation, update=replace(observation.update, num_examples=2))
    pictures = torch.zeros(2, 3, 8, 8)
    pictures[:, 0, 0, 0] = value
    with pytest.raises(ValueError, match="each of its pictures holds NaN or infinity"):
        call(Gives(Reconstruction(images=pictures)), observation)
    pictures[1] = 0.5  # one that was rebuilt beside one that was not
    assert call(Gives(Reconstruction(images=pictures)), observation).images.shape == (2, 3, 8, 8)


def test_no_pictures_at_all_are_a_result(observation):
    assert call(Gives(Reconstruction(images=torch.zeros(0, 3, 8, 8))), observation).images.shape[0] == 0
    assert call(Gives(Reconstruction(labels=torch.tensor([3]))), observation).images is None


def test_roles_of_several_parameters_are_needed_whole(observation):
    needs = Needs(roles=("head_biases", "pos_embed"))
    assert call(Gives(Reconstruction(), needs), observation).images is None
    (name,) = observation.roles.head_biases
    (gradient,) = observation.gradients_of("head_biases")
    assert torch.equal(gradient, observation.gradient[name])
    tensors = {key: tensor for key, tensor in observation.update.tensors.items() if key != name}
    without = replace(observation, update=replace(observation.update, tensors=tensors))
    with pytest.raises(NotApplicable, match=rf"{name}'s gradient is withheld by the client"):
        call(Gives(Reconstruction(), needs), without)
    headless = replace(observation, roles=replace(observation.roles, head_biases=()))
    with pytest.raises(NotApplicable, match="the model has no head_biases"):
        call(Gives(Reconstruction(), needs), headless)


@pytest.mark.parametrize(
    ("batch_size", "steps", "held", "served"),
    [(2, 1, 2, True), (1, 2, 2, True), (3, 1, 3, False), (1, 3, 3, False), (2, 2, 4, False), (4, 3, 2, True)],
)
def test_the_most_images_that_can_be_served_are_those_of_all_steps(observation, batch_size, steps, held, served):
    protocol = replace(observation.protocol, batch_size=batch_size, steps=steps)
    update = replace(observation.update, num_examples=held)
    attack = Gives(Reconstruction(), Needs(max_batch_size=2))
    given = replace(observation, protocol=protocol, update=update)
    if served:
        assert call(attack, given).images is None
        return
    with pytest.raises(NotApplicable, match=rf"{batch_size * steps} images behind the update: at most 2 can be served"):
        call(attack, given)


def test_what_public_images_tell_is_asked_for_and_never_missed(observation):
    assert observation.auxiliary_probs is None
    assert call(Gives(Reconstruction(), Needs(auxiliary=True)), observation).images is None
