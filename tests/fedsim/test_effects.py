"""Effects as a record on disk has them."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedsim.effects import AddsNoise, Effect, effects_of_records, effects_to_records


@pytest.mark.parametrize("std", [0.5, torch.tensor(0.5), np.float32(0.5)])
def test_a_number_of_another_library_is_recorded_as_a_number(std):
    records = json.loads(json.dumps(effects_to_records([AddsNoise(std)])))
    assert effects_of_records(records) == (AddsNoise(0.5),)


def test_an_effect_of_ones_own_is_recorded_as_unpublished():
    @dataclass(frozen=True)
    class Turns(Effect):
        by: torch.Tensor

    assert Turns(torch.ones(4)).by.tolist() == [1.0] * 4
    assert effects_to_records([Turns(torch.ones(4))]) == [{"effect": "Unpublished", "defense": "Turns"}]
