from dataclasses import replace

import pytest
import torch

from attacks.optimization.priors import TotalVariation
from attacks.optimization.priors.total_variation import total_variation
from fedsim.errors import NotApplicable


def slow(images):
    """Pixel by pixel."""
    across, down = [], []
    for plane in images.flatten(0, 1).tolist():
        for i, row in enumerate(plane):
            for j, value in enumerate(row):
                across += [abs(row[j + 1] - value)] if j + 1 < len(row) else []
                down += [abs(plane[i + 1][j] - value)] if i + 1 < len(plane) else []
    return sum(across) / len(across) + sum(down) / len(down)


def test_against_loops_gradient_and_vmap(vit, candidates, cpu, check):
    term = TotalVariation(1).prepare(vit, None, cpu)
    small = candidates[:, :, :, :6, :9]
    assert float(term(small[0])) == pytest.approx(slow(small[0]), rel=1e-9)
    check(term, small)


def test_flat_pictures_cost_nothing_and_pull_nowhere():
    flat = torch.full((1, 3, 8, 8), 0.3, requires_grad=True)
    value = total_variation(flat)
    assert float(value.detach()) == 0.0
    value.backward()
    assert not flat.grad.any()


def test_a_single_row_is_refused(vit, cpu):
    with pytest.raises(NotApplicable, match="several rows and columns"):
        TotalVariation(1).prepare(replace(vit, image_shape=(1, 1, 48)), None, cpu)
