"""What is known of the tokens: how many dimensions it spans."""

from dataclasses import replace

import torch

from attacks.analytic.row_space.first_norm import FirstNorm, embedded_rank, first_norm
from fedsim.models.zoo.april import sincos_position_embedding

EPS = torch.finfo(torch.float64).eps


def test_sincos_embeddings_span_rows_and_columns_random_ones_as_many_as_patches():
    grid, width, rng = (3, 4), 64, torch.Generator().manual_seed(0)
    known = sincos_position_embedding(grid, width)
    weight, scale, shift = torch.zeros(width, 12), torch.ones(width).double(), torch.zeros(width).double()
    norm = FirstNorm(weight.double(), known, scale, shift, prefix_tokens=1)
    assert embedded_rank(norm, EPS) == (3 + 4 - 1) + 1
    drawn = torch.randn(known.shape, generator=rng, dtype=torch.float64)
    assert embedded_rank(replace(norm, known=drawn), EPS) == 12 + 1
    assert embedded_rank(replace(norm, known=drawn, shift=torch.randn(width, generator=rng).double()), EPS) == 12 + 1


def test_a_shift_that_the_embeddings_span_is_no_dimension_of_theirs():
    rng = torch.Generator().manual_seed(0)
    known = torch.randn(5, 32, generator=rng, dtype=torch.float64)
    ones = torch.ones(32, dtype=torch.float64)
    shift = known[0] - known[3]
    norm = FirstNorm(torch.zeros(32, 4, dtype=torch.float64), known, ones, shift - shift.mean(), 0)
    assert embedded_rank(norm, EPS) == 5 - 1


def test_a_bias_far_larger_than_the_embeddings_hides_none_of_them():
    rng = torch.Generator().manual_seed(0)
    known = 0.02 * torch.randn(16, 64, generator=rng, dtype=torch.float64) + 5.0 * torch.randn(64, generator=rng)
    ones = torch.ones(64, dtype=torch.float64)
    norm = FirstNorm(torch.zeros(64, 4, dtype=torch.float64), known, ones, 0.0 * ones, 0)
    assert embedded_rank(norm, torch.finfo(torch.float32).eps) == 16


def test_its_values_are_those_of_the_models_own_norm(tools, cpu):
    observation = tools.observe(tools.tiny(kwargs={"depth": 1}), tools.photographs(32)[:1], [3])
    norm, model = first_norm(observation, cpu), observation.build_model()
    z = 1e-3 * torch.randn(5, 192, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = model.blocks[0].norm1.double()(z)
    assert norm.eps == 1e-6
    torch.testing.assert_close(torch.nn.functional.layer_norm(z, (192,), norm.scale, norm.shift, norm.eps), expected)
