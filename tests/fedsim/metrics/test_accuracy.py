"""What the server learns of its own model before any client is asked."""

import pytest
import torch
from torch import nn

from fedsim.data import ImageSet
from fedsim.metrics.accuracy import evaluate, mean_softmax


class Pictures(ImageSet):
    def __init__(self, count=100):
        """So many rows of numbers."""
        self.count = count
        self.labels = torch.zeros(count, dtype=torch.long)

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


class MonteCarlo(nn.Linear):
    def forward(self, x):
        return super().forward(nn.functional.dropout(x, 0.5, training=True))


def test_a_model_that_draws_in_eval_mode_is_evaluated_alike_at_each_call():
    model = MonteCarlo(6, 3)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    found = evaluate(model, Pictures(), lambda x: x)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert evaluate(model, Pictures(), lambda x: x) == found


class Caching(nn.Linear):
    """What it computes once it keeps, in a state or in none, and one of its buffers is another at each call."""

    def __init__(self, persistent):
        super().__init__(6, 3)
        self.register_buffer("cache", None, persistent=persistent)
        self.register_buffer("calls", torch.zeros(()), persistent=persistent)

    def forward(self, x):
        self.cache, self.calls = torch.arange(6.0), self.calls + 1
        return super().forward(x)


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("looks", [evaluate, lambda *given: mean_softmax(*given, training_mode=True)])
def test_buffers_that_a_forward_pass_fills_or_replaces_stay_as_they_were(looks, persistent):
    model = Caching(persistent)
    calls = model.calls
    looks(model, Pictures(), lambda x: x)
    assert model.cache is None
    assert model.calls is calls
    assert float(calls) == 0.0
