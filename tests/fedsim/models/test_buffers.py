import pytest
import torch

from fedsim.models.buffers import Buffers


@pytest.fixture
def model():
    inner = torch.nn.Linear(2, 2)
    inner.register_buffer("seen", torch.arange(2.0), persistent=False)
    inner.register_buffer("cache", None, persistent=False)
    inner.register_buffer("late", None)
    inner.register_buffer("saved", torch.arange(2.0))
    inner.register_buffer("other", torch.ones(2))
    return torch.nn.Sequential(inner)


@pytest.mark.parametrize("name", ["seen", "saved"])
@pytest.mark.parametrize("put", [None, torch.ones(3), torch.ones(1).expand(2), torch.ones(2).double()])
def test_whatever_a_forward_pass_puts_in_its_place_the_same_tensor_comes_back(model, name, put):
    held, buffers = model[0].get_buffer(name), Buffers(model)
    held.add_(1)
    setattr(model[0], name, put)
    buffers.restore()
    assert getattr(model[0], name) is held
    assert held.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("name", ["cache", "late"])
def test_what_was_nothing_is_nothing_again(model, name):
    buffers = Buffers(model)
    setattr(model[0], name, torch.ones(2))
    buffers.restore()
    assert getattr(model[0], name) is None


def test_a_model_without_buffers_has_nothing_to_restore():
    Buffers(torch.nn.Linear(2, 2)).restore()


@pytest.mark.parametrize("persistent", [True, False])
def test_an_expanded_one_which_nobody_can_write_to_comes_back_too(model, persistent):
    row = torch.ones(1, 2).expand(2, 2)
    model.register_buffer("mask", row, persistent=persistent)
    buffers = Buffers(model)
    model.mask = torch.zeros(2, 2)
    buffers.restore()
    assert model.mask is row


def test_what_was_put_in_the_place_of_a_saved_one_becomes_the_value_of_the_same_tensor(model):
    inner, buffers = model[0], Buffers(model)
    saved, other = inner.saved, inner.other
    inner.saved, inner.other = other, saved.double()
    buffers.settle()
    assert inner.saved is saved
    assert inner.other is other
    assert (saved.tolist(), other.tolist()) == ([1.0, 1.0], [0.0, 1.0])


@pytest.mark.parametrize(
    ("name", "put"),
    [
        ("saved", None),
        ("saved", torch.ones(3)),
        ("saved", torch.ones(1)),
        ("seen", torch.ones(2)),
        ("late", torch.ones(2)),
    ],
)
def test_what_goes_into_no_state_stays_in_its_place(model, name, put):
    held, buffers = getattr(model[0], name), Buffers(model)
    setattr(model[0], name, put)
    buffers.settle()
    assert getattr(model[0], name) is put
    assert held is None or held.tolist() == [0.0, 1.0]
