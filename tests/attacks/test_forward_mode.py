"""J whole, weighed while it is written."""

import pytest
import torch

from attacks.forward_mode import jacobian_transposed


@pytest.mark.parametrize("together", [1, 2, 5])
def test_rows_of_the_first_tensors_are_weighed(together, rng):
    A = torch.randn(4, 3, 5, generator=rng, dtype=torch.float64)
    x = torch.randn(5, generator=rng, dtype=torch.float64)
    weights = torch.randn(13, generator=rng, dtype=torch.float64)

    def function(x):
        return (A @ x).sin().T, x.square().sum(), x.exp()  # a transposed matrix, a number, and rows without a weight

    flat = torch.autograd.functional.jacobian(lambda x: torch.cat([one.flatten() for one in function(x)]), x)
    expected = torch.cat([weights[:, None] * flat[:13], flat[13:]]).T
    torch.testing.assert_close(jacobian_transposed(function, x, together, weights), expected)
    torch.testing.assert_close(jacobian_transposed(function, x, together), flat.T)
