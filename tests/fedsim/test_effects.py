"""Effects as a record on disk has them."""

import json

import numpy as np
import pytest
import torch

from fedsim.effects import AddsNoise, Effect, effects_of_records, effects_to_records


@pytest.mark.parametrize("std", [0.5, torch.tensor(0.5), np.float32(0.5)])
def test_a_number_of_another_library_is_recorded_as_a_number(std):
    records = json.loads(json.dumps(effects_to_records([AddsNoise(std)])))
    assert effects_of_records(records) == (AddsNoise(0.5),)


def test_an_effect_of_ones_own_is_recorded_as_unpublished():
    class Turns(Effect):
        pass

    assert effects_to_records([Turns()]) == [{"effect": "Unpublished", "defense": "Turns"}]
