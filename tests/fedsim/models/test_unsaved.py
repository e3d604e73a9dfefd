import pytest
import torch

from fedsim.models.unsaved import UnsavedBuffers


@pytest.fixture
def model():
    inner = torch.nn.Linear(2, 2)
    inner.register_buffer("seen", torch.arange(2.0), persistent=False)
    inner.register_buffer("cache", None, persistent=False)
    inner.register_buffer("late", None)
    inner.register_buffer("saved", torch.zeros(2))
    return torch.nn.Sequential(inner)


@pytest.mark.parametrize("seen", [None, torch.ones(3), torch.ones(1).expand(2), torch.ones(2).double()])
def test_whatever_a_forward_pass_puts_in_its_place_the_tensor_of_the_build_comes_back(model, seen):
    built, unsaved = model[0].seen, UnsavedBuffers(model)
    model[0].seen.add_(1)
    model[0].seen = seen
    unsaved.restore()
    assert model[0].seen is built
    assert model[0].seen.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("name", ["cache", "late"])
def test_what_was_nothing_is_nothing_again(model, name):
    unsaved = UnsavedBuffers(model)
    setattr(model[0], name, torch.ones(2))
    unsaved.restore()
    assert getattr(model[0], name) is None


def test_what_a_state_holds_is_left_to_it(model):
    unsaved = UnsavedBuffers(model)
    model[0].saved.add_(1)
    unsaved.restore()
    assert model[0].saved.tolist() == [1.0, 1.0]
