"""What an update amounts to as a gradient, held against torch's own optimisers."""

import pytest
import torch

from fedsim.errors import NotApplicable
from fedsim.update import LocalProtocol, Update, under
from tests.support.buffers import buffers_after


@pytest.mark.parametrize(
    ("momentum", "nesterov", "dampening"), [(0.0, False, 0.0), (0.9, False, 0.0), (0.9, True, 0.0), (0.5, False, 0.3)]
)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_constant_gradient_is_recovered_from_torch_sgd(momentum, nesterov, dampening, steps, rng):
    start = torch.randn(7, generator=rng, dtype=torch.float64)
    gradient = torch.randn(7, generator=rng, dtype=torch.float64)
    parameter = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.05, momentum=momentum, nesterov=nesterov, dampening=dampening)
    for _ in range(steps):
        parameter.grad = gradient.clone()
        optimizer.step()
    protocol = LocalProtocol(
        batch_size=1,
        steps=steps,
        optimizer="sgd",
        lrs=(0.05,) * steps,
        momentum=momentum,
        nesterov=nesterov,
        dampening=dampening,
    )
    for kind, tensor in (("weights", parameter.detach()), ("delta", parameter.detach() - start)):
        recovered = Update({"w": tensor}, kind, 1).as_gradient(protocol, {"w": start})["w"]
        torch.testing.assert_close(recovered, gradient, rtol=1e-10, atol=1e-12)


def test_known_weight_decay_is_subtracted(rng):
    start, gradient = torch.randn(2, 7, generator=rng, dtype=torch.float64)
    parameter = torch.nn.Parameter(start.clone())
    parameter.grad = gradient.clone()
    torch.optim.SGD([parameter], lr=0.1, weight_decay=0.01).step()
    protocol = LocalProtocol(batch_size=1, optimizer="sgd", lrs=(0.1,), weight_decay=0.01)
    recovered = Update({"w": parameter.detach()}, "weights", 1).as_gradient(protocol, {"w": start})["w"]
    torch.testing.assert_close(recovered, gradient, rtol=1e-10, atol=1e-12)


def test_where_a_change_was_pruned_no_weight_decay_is_left(rng):
    start, gradient = torch.randn(2, 7, generator=rng, dtype=torch.float64)
    protocol = LocalProtocol(batch_size=1, optimizer="sgd", lrs=(0.1,), weight_decay=0.01)
    delta = (-0.1 * (gradient + 0.01 * start)).index_fill(0, torch.tensor([1, 4]), 0.0)
    recovered = Update({"w": delta}, "delta", 1).as_gradient(protocol, {"w": start}, pruned=True)["w"]
    assert recovered[[1, 4]].tolist() == [0.0, 0.0]
    torch.testing.assert_close(recovered[[0, 2, 3, 5, 6]], gradient[[0, 2, 3, 5, 6]], rtol=1e-10, atol=1e-12)


def test_a_shared_gradient_is_itself_in_float64(rng):
    gradient = torch.randn(3, generator=rng)
    assert torch.equal(Update({"w": gradient}, "gradient", 1).as_gradient(LocalProtocol(1), {})["w"], gradient.double())


def test_adaptive_optimisers_are_refused():
    protocol = LocalProtocol(batch_size=1, optimizer="adamw", lrs=(0.1,))
    with pytest.raises(NotApplicable, match="adamw is not a multiple"):
        Update({"w": torch.ones(1)}, "delta", 1).as_gradient(protocol, {"w": torch.ones(1)})


def test_a_zero_learning_rate_holds_nothing():
    with pytest.raises(NotApplicable, match="zero"):
        LocalProtocol(batch_size=1, optimizer="sgd", lrs=(0.0,)).gradient_scale()


def test_protocol_survives_json():
    protocol = LocalProtocol(batch_size=4, steps=2, optimizer="sgd", lrs=(0.1, 0.05), momentum=0.9)
    assert LocalProtocol.from_dict(protocol.to_dict()) == protocol


def test_a_whole_number_may_stand_for_a_float():
    values = {**LocalProtocol(2, 1, "sgd", (1.0,), momentum=1.0).to_dict(), "lrs": [1], "momentum": 1, "betas": [0, 0]}
    protocol = LocalProtocol.from_dict(values)
    assert protocol == LocalProtocol(2, 1, "sgd", (1.0,), momentum=1.0, betas=(0.0, 0.0))
    assert isinstance(protocol.momentum, float)


def test_tensors_under_a_prefix_have_the_rest_of_their_names():
    one, two = torch.ones(1), torch.zeros(2)
    assert under("a/", {"a/x": one, "b/x": two, "ba/x": two, "a/a/x": two}) == {"x": one, "a/x": two}


@pytest.mark.parametrize("kind", ["gradient", "delta", "weights"])
def test_buffers_have_values_and_no_gradient(kind):
    start = {"w": torch.ones(1), "mean": torch.tensor([2.0])}
    update = Update({"w": torch.ones(1)}, kind, 1, buffers={"mean": torch.tensor([0.5])})
    assert buffers_after(update, start)["mean"].tolist() == [2.5 if kind == "delta" else 0.5]
    assert set(update.as_gradient(LocalProtocol(1, optimizer="sgd", lrs=(0.1,)), start)) == {"w"}


@pytest.mark.parametrize(
    "settings",
    [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.5, "dampening": 1.2}],
)
@pytest.mark.parametrize("proximal_mu", [0.0, 0.5])
def test_step_factors_are_those_of_torch_sgd(settings, proximal_mu):
    """Step k's factor is the change that a gradient in step k alone makes."""
    lrs = (0.1, 0.05, 0.02)
    factors = LocalProtocol(1, 3, "sgd", lrs, proximal_mu=proximal_mu, **settings).step_factors()
    for one in range(3):
        parameter = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.SGD([parameter], lr=0.1, **settings)
        for step, lr in enumerate(lrs):
            optimizer.param_groups[0]["lr"] = lr
            parameter.grad = proximal_mu * parameter.detach() + float(step == one)
            optimizer.step()
        assert factors[one] == pytest.approx(-parameter.item())
    parameter = torch.zeros(1, dtype=torch.float64, requires_grad=True)  # under one gradient in all steps
    optimizer = torch.optim.SGD([parameter], lr=0.1, **settings)
    for lr in lrs:
        optimizer.param_groups[0]["lr"] = lr
        parameter.grad = proximal_mu * parameter.detach() + 1.0
        optimizer.step()
    scale = LocalProtocol(1, 3, "sgd", lrs, proximal_mu=proximal_mu, **settings).gradient_scale()
    assert scale == pytest.approx(-parameter.item())
    with pytest.raises(NotApplicable, match="local steps of adam"):
        LocalProtocol(1, 3, "adam", lrs).step_factors()
