"""What the server learns of its own model before any client is asked."""

import pytest
import torch
from torch import nn

from fedsim.data import ImageSet
from fedsim.metrics.accuracy import mean_softmax


class Pictures(ImageSet):
    def __init__(self, count=100):
        """So many rows of numbers."""
        self.count = count

    def __len__(self):
        return self.count

    def images(self, indices):
        return torch.rand(100, 6, generator=torch.Generator().manual_seed(0))[list(indices)]


def test_dropout_of_the_training_mode_draws_the_same_at_each_call():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    found = mean_softmax(model, Pictures(), lambda x: x, training_mode=True)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(mean_softmax(model, Pictures(), lambda x: x, training_mode=True), found)
    assert not torch.equal(mean_softmax(model, Pictures(), lambda x: x, training_mode=False), found)


def test_no_image_is_left_alone_for_a_batch_norm():
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    found = mean_softmax(model, Pictures(65), lambda x: x, training_mode=True)
    assert float(found.sum()) == pytest.approx(1.0)
