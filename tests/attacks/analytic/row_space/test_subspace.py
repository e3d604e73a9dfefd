"""How many dimensions a gradient spans above its rounding."""

import torch

from attacks.analytic.row_space.subspace import numerical_rank


def test_rounding_is_no_dimension_and_noise_is():
    rng = torch.Generator().manual_seed(0)
    exact = torch.randn(40, 5, generator=rng).double() @ torch.randn(5, 30, generator=rng).double()
    rounded = exact.float().double()
    assert numerical_rank(exact, torch.finfo(torch.float64).eps) == 5
    assert numerical_rank(rounded, torch.finfo(torch.float32).eps) == 5
    assert numerical_rank(rounded, torch.finfo(torch.float64).eps) == 30
    assert numerical_rank(exact + 1e-3 * torch.randn(40, 30, generator=rng), torch.finfo(torch.float32).eps) == 30
