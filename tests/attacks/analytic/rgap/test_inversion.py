"""The matrices of R-GAP against torch's own forward and backward passes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.analytic.rgap.inversion import (
    conv_matrix,
    gradient_matrix,
    largest_matrix,
    read_head,
    solve_conv,
    solve_linear,
)

CONVS = [nn.Conv2d(2, 5, 3, stride=2, padding=1), nn.Conv2d(2, 4, (3, 2), padding=(2, 0), bias=False)]


def passed(conv, rng):
    """Input, output, ∂L/∂output and ∂L/∂W of a random loss."""
    x = torch.randn(2, 6, 7, generator=rng, dtype=torch.float64)
    z = conv(x[None])[0]
    k = torch.randn(z.shape, generator=rng, dtype=torch.float64)
    (weight_grad,) = torch.autograd.grad((z * k).sum(), conv.weight)
    return x, z.detach(), k, weight_grad


@pytest.mark.parametrize("conv", CONVS, ids=["strided", "oblong"])
def test_the_matrices_are_the_convolution_and_its_gradient(conv, rng):
    conv = conv.double()
    x, z, k, weight_grad = passed(conv, rng)
    bias = 0.0 if conv.bias is None else conv.bias.detach()[:, None, None]
    torch.testing.assert_close((conv_matrix(conv, x.shape) @ x.flatten()).reshape(z.shape) + bias, z)
    K = gradient_matrix(conv, k, (6, 7))
    by_channel = x.flatten(1) @ K.T
    torch.testing.assert_close(by_channel, weight_grad.transpose(0, 1).reshape(2, -1))


@pytest.mark.parametrize("conv", CONVS, ids=["strided", "oblong"])
def test_a_convolutions_input_is_recovered(conv, rng):
    conv = conv.double()
    x, z, k, weight_grad = passed(conv, rng)
    found = solve_conv(conv, tuple(x.shape), z, k, weight_grad, torch.ones_like(z))
    torch.testing.assert_close(found.input, x, rtol=1e-9, atol=1e-9)
    assert found.missing == 0


def test_a_plain_least_squares_of_the_stacked_systems_is_the_oracle(rng):
    """Both variances alike and known: what is left of the weighting must not matter much."""
    conv = nn.Conv2d(2, 6, 3, padding=1, bias=False).double()
    x, z, k, weight_grad = passed(conv, rng)
    z = z + 1e-3 * torch.randn(z.shape, generator=rng, dtype=torch.float64)
    g = weight_grad + 1e-3 * torch.randn(weight_grad.shape, generator=rng, dtype=torch.float64)
    K = gradient_matrix(conv, k, (6, 7))
    A = torch.cat([conv_matrix(conv, x.shape), torch.block_diag(K, K)])
    expected = torch.linalg.lstsq(A, torch.cat([z.flatten(), g.transpose(0, 1).flatten()])).solution
    found = solve_conv(conv, tuple(x.shape), z, k, g, torch.ones_like(z))
    assert float((found.input.flatten() - expected).square().mean()) < 0.2 * float(
        (expected - x.flatten()).square().mean()
    )
    assert 0.3 < float((found.input - x).square().mean()) / found.mse < 3.0


def test_noise_in_one_system_hands_the_word_to_the_other(rng):
    conv = nn.Conv2d(2, 8, 3, padding=1, bias=False).double()
    x, z, k, weight_grad = passed(conv, rng)
    noise = 0.1 * torch.randn(z.shape, generator=rng, dtype=torch.float64)
    by_both = solve_conv(conv, tuple(x.shape), z + noise, k, weight_grad, torch.ones_like(z)).input
    assert float((by_both - x).norm() / x.norm()) < 1e-4, "108 exact equations a channel for 42 unknowns"


def test_missing_directions_are_counted(rng):
    """One output channel, strided: 12 + 9·2 equations for 84 unknowns."""
    conv = nn.Conv2d(2, 1, 3, stride=2, padding=1, bias=False).double()
    x, z, k, weight_grad = passed(conv, rng)
    found = solve_conv(conv, tuple(x.shape), z, k, weight_grad, torch.ones_like(z))
    A = torch.cat([conv_matrix(conv, x.shape), torch.block_diag(*[gradient_matrix(conv, k, (6, 7))] * 2)])
    assert found.missing == 84 - int(torch.linalg.matrix_rank(A, rtol=1e-6))
    assert bool(found.input.isfinite().all())


@pytest.mark.parametrize(
    "conv", [nn.Conv2d(3, 40, 3), nn.Conv2d(1, 1, 5, padding=2), nn.Conv2d(3, 2, 5, 2), nn.Conv2d(1, 300, 12)]
)
def test_the_largest_matrix_is_counted(conv):
    shape = (conv.in_channels, 12, 12)
    W = conv_matrix(conv, shape)
    identity = torch.eye(144).view(144, 1, 12, 12)
    windows = F.unfold(identity, conv.kernel_size, conv.dilation, conv.padding, conv.stride)
    output_shape = tuple(conv(torch.zeros(1, *shape)).shape[1:])
    K = gradient_matrix(conv, torch.zeros(output_shape), shape[1:])
    made = W.numel(), (W.T @ W).numel(), windows.numel(), K.numel()
    assert largest_matrix(conv, shape, output_shape) == max(made)


def test_a_linear_layers_input(rng):
    x, k = torch.randn(9, generator=rng), torch.randn(4, generator=rng)
    torch.testing.assert_close(solve_linear(k, torch.outer(k, x)).input, x.double(), rtol=1e-6, atol=1e-6)
    assert solve_linear(torch.zeros(4), torch.zeros(4, 9)).missing == 9


def read_back(weight, bias, h, label, smoothing):
    """The readings of a classifier's gradient, and those of them that are the truth."""
    weight = weight.clone().requires_grad_()
    variables = [weight] if bias is None else [weight, bias.requires_grad_()]
    logits = F.linear(h[None], weight, bias)
    grads = torch.autograd.grad(F.cross_entropy(logits, torch.tensor([label]), label_smoothing=smoothing), variables)
    known = torch.zeros(len(weight), dtype=torch.float64) if bias is None else bias.detach()
    found = read_head(weight.detach(), known, grads[0], grads[1] if bias is not None else None, smoothing)
    return found, [r for r in found if r.label == label and torch.allclose(r.input, h, rtol=1e-5, atol=1e-7)]


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_classifier_is_read(classes, smoothing, with_bias, rng):
    for _ in range(10):
        weight = torch.randn(classes, 20, generator=rng, dtype=torch.float64) / 8
        bias = torch.randn(classes, generator=rng, dtype=torch.float64) / 8 if with_bias else None
        h = torch.randn(20, generator=rng, dtype=torch.float64)
        found, true = read_back(weight, bias, h, classes - 1, smoothing)
        assert true, found
        assert true[0].residual < 1e-10
        if classes > 2:
            assert true[0] is found[0]


def test_a_bias_of_gradient_zero_is_read_as_if_it_had_none(rng):
    weight, bias = torch.randn(5, 8, generator=rng).double(), torch.randn(5, generator=rng).double()
    gradient = torch.outer(torch.tensor([0.1, 0.2, -0.5, 0.1, 0.1]), torch.randn(8, generator=rng)).double()
    zero, absent = (read_head(weight, bias, gradient, given) for given in (torch.zeros(5).double(), None))
    assert [one.label for one in zero] == [one.label for one in absent]
    assert all(torch.equal(one.input, other.input) for one, other in zip(zero, absent, strict=True))


@pytest.mark.parametrize("apart", [1e-1, 1e-2, 1e-3, 1e-4])
def test_neighbouring_twins_are_both_read(apart):
    """Two classes: the gradient shows e·h alone; an error e = 1 / (1 + exp m) at margin m has a twin of equal e·m.

    e·m is largest where m = 1 + exp(-m): there, at m = 1.2785, the twins meet.
    """
    weight = torch.tensor([[0.5, 0.0], [-0.5, 0.0]], dtype=torch.float64)  # margin of class 0 = h[0]
    for side in (-apart, apart):
        h = torch.tensor([1.2784645 + side, 0.7], dtype=torch.float64)
        found, true = read_back(weight, None, h, 0, 0.0)
        assert true, found
        assert true[0].residual < 1e-10
        assert sum(read.label == 0 and read.residual < 1e-10 for read in found) == 2


def test_noise_makes_readings_that_overshoot_and_they_rank_behind(rng):
    """Of 16 noisy gradients more are read right than where the residual alone decides."""
    ranked = unranked = 0
    for _ in range(16):
        weight = (3 * torch.randn(10, 64, generator=rng, dtype=torch.float64) / 8).requires_grad_()
        h = torch.randn(64, generator=rng, dtype=torch.float64)
        loss = F.cross_entropy(F.linear(h[None], weight), torch.tensor([4]), label_smoothing=0.1)
        (grad,) = torch.autograd.grad(loss, [weight])
        noise = torch.randn(grad.shape, generator=rng, dtype=torch.float64)
        noisy = grad + 0.3 * grad.norm() * noise / noise.norm()
        found = read_head(weight.detach(), torch.zeros(10).double(), noisy, None, 0.1)
        right = [float((head.input - h).norm() / h.norm()) < 0.3 for head in found]
        ranked += right[0]
        unranked += right[min(range(len(found)), key=lambda index: found[index].residual)]
    assert ranked > unranked


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_confident_model_overshoots_its_smoothed_target(classes, with_bias, rng):
    """p_y above 1 - ε + ε/C: the label's entry of the gradient is positive."""
    weight = torch.randn(classes, 20, generator=rng, dtype=torch.float64) / 8
    bias = torch.zeros(classes, dtype=torch.float64) if with_bias else None
    h = 20 * weight[1] / weight[1].square().sum()
    assert float((weight @ h).softmax(0)[1]) > 0.95
    found, true = read_back(weight, bias, h, 1, 0.1)
    assert true, found
    assert float(true[0].error[1]) > 0
    assert true[0].residual < 1e-10
