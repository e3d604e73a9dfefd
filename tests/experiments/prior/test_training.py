from itertools import pairwise

import pytest
import torch
from torch import nn

from experiments.prior.training import Training
from fedsim.determinism import torch_generator
from fedsim.errors import RunError
from fedsim.settings.trained import TrainingSchedule

SCHEDULE = TrainingSchedule(steps=12, batch_size=1, lr=0.1, save_every=5)


def fresh():
    module = nn.Linear(3, 2)
    with torch.no_grad():
        module.weight.fill_(0.5)
        module.bias.zero_()
    return module


def losses_of(module):
    return lambda step: module(torch.randn(4, 3, generator=torch_generator(0, step))).square().mean()


def train(path, deadly=None):
    module = fresh()
    heard = []

    def progress(step, loss):
        heard.append((step, loss))
        if step == deadly:
            raise KeyboardInterrupt

    Training(module, SCHEDULE, path).run(losses_of(module), progress)
    return module.state_dict(), heard


def test_a_killed_training_comes_to_the_same_bits(tmp_path):
    whole, heard = train(tmp_path / "whole")
    path = tmp_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        train(path, deadly=8)
    again, rest = train(path)
    assert [step for step, _ in rest] == list(range(6, 13))
    assert rest == heard[5:]
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.items())
    finished, nothing = train(path)
    assert nothing == []
    assert all(torch.equal(finished[name], tensor) for name, tensor in whole.items())


def test_what_cannot_be_read_starts_anew(tmp_path, caplog):
    whole, _ = train(tmp_path / "whole")
    path = tmp_path / "damaged"
    path.write_bytes((tmp_path / "whole").read_bytes()[:50])
    again, heard = train(path)
    assert len(heard) == SCHEDULE.steps
    assert "starts anew" in caplog.text
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.items())


def test_a_loss_that_is_not_finite_ends_it_and_is_not_kept(tmp_path):
    module, path = fresh(), tmp_path / "kept"
    losses = losses_of(module)
    training = Training(module, SCHEDULE, path)
    with pytest.raises(RunError, match="step 7: the loss is nan"):
        training.run(lambda step: losses(step) * (float("nan") if step == 7 else 1.0), lambda step, loss: None)
    again = Training(fresh(), SCHEDULE, path)
    assert again.step == 5
    assert all(tensor.isfinite().all() for tensor in again.module.state_dict().values())


def test_the_rate_rises_and_falls_to_nothing():
    schedule = TrainingSchedule(steps=100, batch_size=1, lr=1.0)
    rates = [schedule.lr_at(step) for step in range(100)]
    assert rates[0] < rates[4] == max(rates) <= 1.0
    assert rates[-1] < 1e-3
    assert all(a >= b for a, b in pairwise(rates[4:]))
