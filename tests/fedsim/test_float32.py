import pytest
import torch

from fedsim.float32 import full_float32


def chosen():
    return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32


@pytest.fixture
def gpu(monkeypatch):
    """Flags of a process that sees a GPU; whatever a test leaves is undone."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    before = chosen()
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("before", [(True, False), (True, True), (False, False)])
def test_nothing_is_rounded_to_tf32_in_the_block(gpu, before):
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
    with full_float32():
        assert chosen() == (False, False)
    assert chosen() == before


def test_a_fault_leaves_the_choice(gpu):
    before = chosen()
    with pytest.raises(ZeroDivisionError), full_float32():
        raise ZeroDivisionError
    assert chosen() == before
