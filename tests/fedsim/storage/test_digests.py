import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsim.storage.digests import described, file_sha256


def test_a_files_digest_is_that_of_its_bytes(tmp_path):
    content = bytes(range(256)) * 5000
    (tmp_path / "file").write_bytes(content)
    assert file_sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()


class Slotted:
    __slots__ = ("kept",)

    def __init__(self, kept):
        self.kept = kept


@dataclass
class Held:
    value: object


def with_generator(seed):
    return Held(torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        ("1", 1),
        (["1.bias"], ["3.bias"]),
        (["a", "b"], ["a, b"]),
        ([1, [2]], [[1], 2]),
        ((1,), [1]),
        ({"a": [1]}, {"a": [2]}),
        ({1, 2}, {1, 3}),
        (b"a", b"b"),
        (Path("a"), Path("b")),
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (np.zeros(2), np.array([0.0, 1.0])),
        (np.float32(1), np.float64(1)),
        (torch.float32, torch.float64),
        (Slotted(1), Slotted(2)),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (functools.partial(max, 1), functools.partial(min, 1)),
        (torch.relu, torch.sigmoid),
        (with_generator, Held),
        (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)),
        (torch.nn.ReLU(), torch.nn.Sigmoid()),
    ],
)
def test_objects_of_another_class_or_state_are_told_apart_at_any_depth(one, other):
    assert described(one) == described(one)
    assert described(one) != described(other)
    assert described(Held([one])) != described(Held([other]))


def test_equal_objects_have_one_description():
    assert described(with_generator(1)) == described(with_generator(1)) != described(with_generator(2))
    assert described({"b", "a", "c"}) == described({"c", "b", "a"})
    ring, same = Held(None), Held(None)
    ring.value, same.value = [ring], [same]
    assert described(ring) == described(same)
    assert "0x" not in described([torch.relu, functools.partial(torch.nn.functional.relu), ring])


def test_what_has_no_name_or_state_is_refused():
    for unreadable in (lambda: 1, with_generator.__get__(lambda: 1), (one for one in ())):
        with pytest.raises(TypeError):
            described(Held([unreadable]))
