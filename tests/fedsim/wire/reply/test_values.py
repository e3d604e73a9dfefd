"""Foreign numbers and text are read as what they must be, or refused in one harmless line."""

import numpy as np
import pytest
from flwr.app import Array
from torch import nn

from fedsim.wire.reply.values import MalformedReply, number, parsed, shown, values_like, whole


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("a\nb\x1b[0m\u202e\ud800", r"'a\nb\x1b[0m\u202e\ud800'"),
        ("<b>&", r"'\x3cb\x3e\x26'"),
        ("x" * 100, f"'{'x' * 60}'… (100 characters)"),
        (10**5000, "a number of 16610 bits"),
        (2.5, "2.5"),
        (None, "None"),
        ([1, 2], "2 entries"),
        (b"abc", "3 bytes"),
        (nn.Identity, "type"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_foreign_values_are_shown_in_one_harmless_line(value, words):
    assert shown(value) == words


@pytest.mark.parametrize("value", [True, 1.0, 0, 4, "2", None])
def test_a_whole_number_is_in_its_range_and_of_its_type(value):
    assert whole("steps", 3, 1, 3) == 3
    with pytest.raises(MalformedReply, match=r"^steps is .*, no whole number from 1 to 3$"):
        whole("steps", value, 1, 3)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, True, "0.5"])
def test_a_number_is_in_its_range(value):
    number("loss", 0.5, 0.0)
    with pytest.raises(MalformedReply, match=r"^loss is .*, no number from 0 to 1e\+12$"):
        number("loss", value, 0.0)


@pytest.mark.parametrize("text", ["[1]", "{", "[" * 10**5, 5, b"{}"])
def test_json_is_an_object(text):
    assert parsed("withheld", '{"a": 1}') == {"a": 1}
    with pytest.raises(MalformedReply, match=r"^withheld is "):
        parsed("withheld", text)


def test_a_side_is_a_number_and_no_truth_value():
    """NumPy makes no array of it, though it equals the model's."""
    model = Array(np.ones((1, 2), dtype=np.float32))
    assert values_like("t", model, model).tolist() == [1.0, 1.0]
    forged = Array(model.dtype, (True, 2), model.stype, model.data)
    with pytest.raises(MalformedReply, match=r"^tensor t has the shape \(True, 2\), the model's has \(1, 2\)$"):
        values_like("t", forged, model)
