"""Each contract holds for what keeps it, and fails for what breaks it."""

from dataclasses import dataclass, replace

import pytest
import torch

from defenses import GradientNoise, TopK
from fedsim.data import Digits
from fedsim.errors import NotApplicable
from fedsim.models import ModelSpec
from fedsim.testing import (
    check_attack_replay,
    check_beats_noise,
    check_effect,
    check_identity,
    check_refusal,
    check_replay,
    check_source,
    observe,
)

NOISE, TOPK = GradientNoise(0.1).transform_update, TopK(0.1, error_feedback=False).transform_update
NANO = ModelSpec("vit_nano_patch2_8", 10)
PICTURE = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(6))


@dataclass
class Found:
    images: torch.Tensor


def first_come(update, rng):
    """Noise in the order in which the tensors are listed."""
    return replace(update, tensors={n: t + torch.randn(t.shape, generator=rng) for n, t in update.tensors.items()})


def in_place(update, rng):
    update.tensors["weight"].mul_(2)
    return update


def noise_in_place(update, rng):
    update.tensors["weight"].add_(torch.randn(update.tensors["weight"].shape, generator=rng))
    return update


def naming(update, rng):
    return replace(update, tensors={**update.tensors, "more": torch.zeros(1)})


def forgetful(update, rng):
    return replace(update, tensors={"weight": update.tensors["weight"]})


def unchanged(update, rng):
    return update


def cast(update, rng):
    return replace(update, tensors={**update.tensors, "weight": update.tensors["weight"].half()})


def test_defenses_that_keep_the_contracts():
    check_identity(GradientNoise(0.0).transform_update)
    check_effect(NOISE)
    check_replay(NOISE, random=True)
    check_replay(TOPK, random=False)


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (lambda: check_identity(TOPK), "weight was changed"),
        (lambda: check_identity(in_place), "weight was changed"),
        (lambda: check_identity(naming), "more was changed"),
        (lambda: check_identity(lambda update, _: replace(update, kind="delta")), "kind was changed"),
        (lambda: check_identity(lambda update, _: replace(update, num_examples=5)), "num_examples was changed"),
        (lambda: check_effect(unchanged), "nothing was changed"),
        (lambda: check_effect(lambda update, _: replace(update, num_examples=5)), "nothing was changed in any tensor"),
        (lambda: check_effect(lambda update, rng: replace(NOISE(update, rng), kind="delta")), "kind is delta"),
        (lambda: check_effect(in_place), "in place"),
        (lambda: check_effect(forgetful), "bias is missing"),
        (lambda: check_effect(cast), "float16"),
        (lambda: check_replay(first_come, random=True), "order"),
        (lambda: check_replay(lambda update, _: NOISE(update, torch.Generator()), random=True), "changes nothing"),
        (lambda: check_replay(NOISE, random=False), "changes the result"),
        (lambda: check_replay(noise_in_place, random=False), "changes the result"),
    ],
)
def test_defenses_that_break_them(check, words):
    with pytest.raises(AssertionError, match=words):
        check()


def from_gradient(observation, rng, device):
    """The answer where the gradient is that of the truth, grey elsewhere."""
    known = observe(NANO, PICTURE, [3]).update.tensors["head.weight"]
    true = torch.equal(observation.update.tensors["head.weight"], known)
    return Found(PICTURE if true else torch.full_like(PICTURE, 0.5))


def test_attacks():
    observation = observe(NANO, PICTURE, [3])
    check_beats_noise(from_gradient, observation, PICTURE, decibels=100)
    check_attack_replay(from_gradient, observation)
    with pytest.raises(AssertionError, match="with noise in its place"):
        check_beats_noise(lambda *_: Found(PICTURE), observation, PICTURE, decibels=1)
    with pytest.raises(AssertionError, match="a second call"):
        check_attack_replay(lambda *_: Found(torch.rand(PICTURE.shape)), observation)

    def write(seen, *_):
        seen.update.tensors["head.weight"].zero_()
        return Found(PICTURE)

    def write_weights(seen, *_):
        next(iter(seen.global_state.values())).zero_()
        return Found(PICTURE)

    def write_data(seen, *_):
        seen.update.tensors["head.weight"].data.add_(1)
        return Found(PICTURE)

    def write_array(seen, *_):
        seen.public_images.pixels.numpy()[:] = 0
        return Found(PICTURE)

    def write_prior(seen, *_):
        seen.image_prior.mean.data.zero_()
        return Found(PICTURE)

    observation = observation.with_public_images(torch.rand(3, 3, 8, 8))
    for writer in (write, write_weights, write_data, write_array, write_prior):
        with pytest.raises(AssertionError, match="wrote into"):
            check_attack_replay(writer, observation)


def test_labels_alone_are_a_result_and_no_picture():
    observation = observe(NANO, PICTURE, [3])
    check_attack_replay(lambda *_: Found(None), observation)
    with pytest.raises(AssertionError, match="gave no picture"):
        check_beats_noise(lambda *_: Found(None), observation, PICTURE, decibels=1)


def test_no_draw_of_the_attack_is_the_picture_or_the_noise_of_the_defense():
    grey = torch.full_like(PICTURE, 0.5)
    drawn = torch.rand(PICTURE.shape, generator=torch.Generator().manual_seed(0))
    plain, noisy = observe(NANO, drawn, [3]), observe(NANO, drawn, [3], NOISE)

    def first_draw(seen, rng, device):
        true = torch.equal(seen.update.tensors["head.weight"], plain.update.tensors["head.weight"])
        return Found(torch.rand(PICTURE.shape, generator=rng) if true else grey)

    def same_noise(seen, rng, device):
        again = NOISE(plain.update, rng).tensors
        return Found(drawn if torch.equal(again["head.weight"], seen.update.tensors["head.weight"]) else grey)

    for attack, seen in ((first_draw, plain), (same_noise, noisy)):
        with pytest.raises(AssertionError, match="with noise in its place"):
            check_beats_noise(attack, seen, drawn, decibels=10)


def test_images_of_another_size_than_the_model_reads_are_refused():
    with pytest.raises(AssertionError, match=r"images are \(1, 3, 16, 16\), the model reads 3×8×8"):
        observe(NANO, torch.rand(1, 3, 16, 16), [3])


def test_refusals():
    observation = observe(NANO, PICTURE, [3])

    def refuse(*_):
        raise NotApplicable("no such layer")

    check_refusal(refuse, observation, "such layer")
    with pytest.raises(AssertionError, match="other words"):
        check_refusal(refuse, observation, "batch")
    with pytest.raises(AssertionError, match="did not refuse"):
        check_refusal(from_gradient, observation, "")


def test_the_observation_is_what_a_defense_leaves_of_the_gradient():
    plain, masked = observe(NANO, PICTURE, [3]), observe(NANO, PICTURE, [3], TOPK)
    assert all((t != 0).any() for t in plain.update.tensors.values() if t.ndim == 2)
    kept = sum(int((t != 0).sum()) for t in masked.update.tensors.values())
    assert kept == pytest.approx(0.1 * sum(t.numel() for t in plain.update.tensors.values()), abs=1)


def test_sources():
    check_source(Digits())

    class Restless:
        loads = 0

        def load(self):
            self.loads += 1
            return Digits(seed=self.loads).load()

    with pytest.raises(AssertionError, match="a second load"):
        check_source(Restless())
