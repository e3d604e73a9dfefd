"""Whatever goes wrong on the way to a result is a result."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedsim
from attacks import running
from attacks.base import Attack, Certificate, Frame, NotApplicable, Reconstruction
from attacks.building import WROTE

CPU = torch.device("cpu")


class Gray(Attack):
    """Gives a gray image, which is then drawn towards the public mean; serves several victims at once too."""

    shrinks_to_mean = True
    chunk = 4

    def shrink(self, device):
        if self.chunk == 1:
            return ""
        self.chunk //= 2
        return f"chunk={self.chunk}"

    def run(self, observation, rng, device):
        return Reconstruction(images=torch.full((1, *observation.image_shape), 0.5))

    def run_many(self, observations, rngs, device):
        return [self.run(one, rng, device) for one, rng in zip(observations, rngs, strict=True)]


@pytest.fixture(scope="module")
def victims():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
    one = fedsim.observe(model, torch.rand(1, 3, 4, 4), [3])
    return [one, replace(one, client=1)]


def measuring(value):
    """A gray image with this among what was measured."""
    image = torch.full((1, 3, 4, 4), 0.5)
    frames = (Frame(torch.tensor(1), image, {"loss": value}),)
    return Reconstruction(image, None, Certificate("none", "", {"loss": value}), ({"loss": value},), frames=frames)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("value", "status"),
    [
        (torch.tensor(2.0, requires_grad=True), "done"),
        (np.float32(2), "done"),
        (torch.ones(3), "failed"),
        (object(), "failed"),
    ],
)
def test_what_an_attack_measured_is_a_number_or_fails_it(victims, monkeypatch, value, status, count):
    monkeypatch.setattr(Gray, "run", lambda self, observation, rng, device: measuring(value))
    monkeypatch.setattr(running, "drawn_to_mean", lambda observation, result: result)
    for result in fedsim.attack(Gray(), victims[:count]):
        row = json.loads(json.dumps(result.to_json()))
        assert row["status"] == status
        if status == "done":
            assert (row["trace"], row["certificate"]["values"]) == ([{"loss": 2.0}], {"loss": 2.0})
            assert result.frames[0].step == 1


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("where", ["gradient", "image_prior", "auxiliary_probs", "public_images"])
def test_what_an_attack_writes_into_what_it_was_given_fails_it(victims, monkeypatch, where, count):
    """The gradient is computed when it is first asked for, and kept."""
    probs = torch.full((5,), 0.2)
    seen = [replace(one.with_public_images(torch.rand(4, 3, 4, 4)), auxiliary_probs=probs) for one in victims[:count]]

    def write(self, observation, rng, device):
        tensor = {
            "gradient": observation.gradient["1.weight"],
            "image_prior": observation.image_prior.mean,
            "auxiliary_probs": observation.auxiliary_probs,
            "public_images": observation.public_images.pixels,
        }[where]
        tensor.mul_(2)
        return Reconstruction(images=torch.full((1, *observation.image_shape), 0.5))

    before = [one.image_prior.mean.clone() for one in seen]
    pixels = [one.public_images.pixels.clone() for one in seen]
    monkeypatch.setattr(Gray, "run", write)
    for result in fedsim.attack(Gray(), seen):
        assert (result.status, WROTE in result.reason) == ("failed", True)
    assert all(torch.equal(one.image_prior.mean, mean) for one, mean in zip(seen, before, strict=True))
    assert all(torch.equal(one.public_images.pixels, known) for one, known in zip(seen, pixels, strict=True))
    assert torch.equal(probs, torch.full((5,), 0.2))


def completion(monkeypatch, error, only=None):
    """Make what follows an attack's own image raise, for one client or all."""

    def drawn(observation, result):
        if only in (None, observation.client) and (fault := error()) is not None:
            raise fault
        return result

    monkeypatch.setattr(running, "drawn_to_mean", drawn)


@pytest.mark.parametrize("step", ["drawn_to_mean", "_own"])
def test_a_fault_after_the_attack_has_run_is_a_result_too(victims, monkeypatch, step):
    def broken(*_):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(running, "drawn_to_mean", lambda observation, result: result)
    monkeypatch.setattr(running, step, broken)
    result = fedsim.attack(Gray(), victims[0])
    assert (result.status, result.reason) == ("failed", "ZeroDivisionError: by zero")
    assert "in broken" in result.fault
    assert result.images is None


def test_of_a_group_it_is_that_victims_alone(victims, monkeypatch):
    completion(monkeypatch, lambda: ZeroDivisionError("by zero"), only=1)
    first, second = fedsim.attack(Gray(), victims)
    assert first.status == "done"
    assert (second.status, second.reason) == ("failed", "ZeroDivisionError: by zero")
    assert "in drawn" in second.fault
    completion(monkeypatch, lambda: NotApplicable("not this one"), only=1)
    first, second = fedsim.attack(Gray(), victims)
    assert (first.status, second.status, second.reason) == ("done", "refused", "not this one")


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("broken", [False, True])
def test_a_failure_says_whether_cuda_goes_on_behind_it(victims, monkeypatch, count, broken):
    def synchronize(_):
        if broken:
            raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    completion(monkeypatch, lambda: IndexError("index out of range"))
    monkeypatch.setattr(Gray, "__call__", lambda attack, one, rng, device: attack.run(one, rng, torch.device("cpu")))
    results = running.run_built(victims[:count], "gray", Gray(), 0, torch.device("cuda"))
    assert [one.reason.endswith("in its process") for one in results] == [broken] * count
    assert [running.breaks_process(one) for one in results] == [broken] * count


def test_a_full_gpu_says_so_in_several_words():
    full = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    assert running.out_of_memory(RuntimeError(full))
    assert not running.out_of_memory(RuntimeError(full.replace("ALLOC", "EXECUTION")))


@pytest.mark.parametrize("count", [1, 2])
def test_running_out_of_memory_there_is_answered_by_less(victims, monkeypatch, count):
    attack = Gray()
    completion(monkeypatch, lambda: MemoryError() if attack.chunk > 2 else None)
    results = fedsim.attack(attack, victims[:count])
    assert [one.status for one in results] == ["done"] * count
    assert results[0].reason == "out of memory until chunk=2"
    assert float(results[0].images.mean()) == 0.5


def test_where_less_does_not_do_it_fails(victims, monkeypatch):
    completion(monkeypatch, MemoryError)
    assert fedsim.attack(Gray(), victims[0]).reason == "MemoryError: "


def test_who_does_not_shrink_to_the_mean_keeps_its_image(victims, monkeypatch):
    monkeypatch.setattr(running, "drawn_to_mean", lambda _, result: replace(result, images=result.images + 0.25))
    attack = Gray()
    assert float(fedsim.attack(attack, victims[0]).images.mean()) == 0.75
    attack.shrinks_to_mean = False
    assert float(fedsim.attack(attack, victims[0]).images.mean()) == 0.5


@pytest.mark.parametrize("defense", ["local_dp", "dp_sgd", "gradient_noise", "outpost"])
def test_victims_whose_noise_is_the_same_are_refused(defense, tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
    one, other = (fedsim.observe(model, torch.rand(1, 3, 4, 4), [3], defense=[defense]) for _ in range(2))
    other.save(tmp_path / "other")
    loaded = fedsim.Observation.load(tmp_path / "other", model=model)
    for same in (other, loaded):
        with pytest.raises(fedsim.ConfigError, match=r"^observation=round-00000-client-00000, more .* client= of its"):
            fedsim.attack("labels", [one, replace(one, client=1), same])
    assert len(fedsim.attack("labels", [one, replace(other, client=1), replace(other, server_round=1)])) == 3


def test_victims_without_noise_may_be_called_the_same(victims):
    assert len(fedsim.attack("labels", [victims[0], victims[0]])) == 2


def test_an_own_defense_may_say_that_it_draws_nothing():
    class Silent(fedsim.Defense):
        def transform_update(self, update, rng):
            return update

    class Halves(Silent):
        repeatable = True

        def transform_update(self, update, rng):
            return replace(update, tensors={name: tensor / 2 for name, tensor in update.tensors.items()})

    model, image = nn.Sequential(nn.Flatten(), nn.Linear(48, 5)), torch.rand(1, 3, 4, 4)
    with pytest.raises(fedsim.ConfigError, match="more than once"):
        fedsim.attack("labels", [fedsim.observe(model, image, [3], defense=Silent()) for _ in range(2)])
    assert len(fedsim.attack("labels", [fedsim.observe(model, image, [3], defense=Halves()) for _ in range(2)])) == 2


def test_of_more_images_than_there_are_the_first_count(victims):
    """The truth chose the best of a pool that reads nothing: it came out far above any guess."""

    class Pool(Attack):
        def run(self, observation, rng, device):
            return Reconstruction(images=torch.rand(40, *observation.image_shape, generator=rng))

    result = fedsim.attack(Pool(), victims[0])
    assert result.reason.startswith("40 images for an update of 1: the first 1 count")
    original = result.images[7:8].clamp(0, 1)
    scored = fedsim.score(result, original).scores.images[0]
    assert scored.reconstruction == 0
    assert scored.psnr < 10
    assert not fedsim.attack(Gray(), victims[0]).reason

    class Luck(Pool):
        baseline = True

    result = fedsim.attack(Luck(), victims[0])
    assert not result.reason
    assert fedsim.score(result, result.images[7:8].clamp(0, 1)).scores.images[0].reconstruction == 7
