"""Flags of torch, which exist without a GPU."""

from unittest.mock import MagicMock

import pytest
import torch
from torch import nn

from experiments.measure import command as measure
from experiments.prior import command as prior
from fedsim.float32 import full_float32
from fedsim.metrics.accuracy import evaluate
from tests.fedsim.metrics.test_accuracy import Pictures

WHOLE = MagicMock()

CHOICES = {
    "torch's own": lambda: None,
    "all of the older words": lambda: [
        setattr(torch.backends.cudnn, "allow_tf32", True),
        setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    ],
    "none of them": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
}
BY_NAME = {
    f"{where} {precision}": (where, precision)
    for where in ("conv", "matmul", "cudnn", "everything")
    for precision in ("ieee", "tf32")
}


def places():
    """Where a precision is chosen by name, from the whole to its parts."""
    backends = torch.backends
    named = {"everything": backends, "cudnn": backends.cudnn, "conv": backends.cudnn.conv, "rnn": backends.cudnn.rnn}
    return named | {"matmul": backends.cuda.matmul}


def chosen():
    def older(read):
        try:
            return read()
        except RuntimeError:
            return "mixed"

    words = [older(lambda: torch.backends.cudnn.allow_tf32), older(torch.get_float32_matmul_precision)]
    return words + [place.fp32_precision for place in places().values()]


@pytest.fixture
def gpu(monkeypatch):
    """A process that sees a GPU; whatever a test leaves is undone."""
    if not hasattr(torch.backends.cudnn, "conv"):
        pytest.skip("this torch has no precision by name")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    convolutions, products = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    names = {name: place.fp32_precision for name, place in places().items()}
    yield
    torch.backends.cudnn.allow_tf32 = convolutions
    torch.set_float32_matmul_precision(products)
    for name, place in places().items():
        place.fp32_precision = names[name]


def choose(choice):
    if choice in CHOICES:
        CHOICES[choice]()
    else:
        where, precision = BY_NAME[choice]
        places()[where].fp32_precision = precision


@pytest.mark.parametrize("choice", [*CHOICES, *BY_NAME])
def test_nothing_is_rounded_to_tf32_in_the_block_and_the_choice_stays(gpu, choice):
    choose(choice)
    before = chosen()
    with full_float32(), full_float32():
        inside = places()
        assert [inside[part].fp32_precision for part in ("conv", "rnn", "matmul")] == ["ieee"] * 3
    assert chosen() == before


def test_a_fault_leaves_the_choice(gpu):
    before = chosen()
    with pytest.raises(ZeroDivisionError), full_float32():
        raise ZeroDivisionError
    assert chosen() == before


@pytest.mark.parametrize(
    ("begin", "where"),
    [
        (lambda: evaluate(nn.Linear(1, 1), Pictures(), lambda x: x), "fedsim.metrics.accuracy.Buffers"),
        (lambda: prior._train(WHOLE, None, None, None, None), "experiments.prior.command.resolve_device"),
        (lambda: measure._measure(WHOLE, None, None), "experiments.measure.command.say_doing"),
    ],
    ids=["evaluating", "training a prior", "measuring"],
)
def test_so_it_is_while(gpu, monkeypatch, begin, where):
    def look(*_):
        found.append(places()["conv"].fp32_precision)
        raise ZeroDivisionError

    found = []
    monkeypatch.setattr(where, look)
    with pytest.raises(ZeroDivisionError):
        begin()
    assert found == ["ieee"]
