import math
from dataclasses import replace

import pytest
import torch

from attacks.optimization.priors import TotalVariation
from attacks.optimization.priors.total_variation import total_variation
from fedsim.errors import ConfigError, NotApplicable

KINDS = ("anisotropic", "isotropic", "squared")


def slow(images, kind, double_opponents):
    """Pixel by pixel."""
    across, down, both = [], [], []
    for picture in images.tolist():
        planes = list(picture)
        if double_opponents:
            for a, b in ((0, 1), (0, 2), (1, 2)):
                rows = zip(picture[a], picture[b], strict=True)
                planes.append([[x - y for x, y in zip(*pair, strict=True)] for pair in rows])
        for plane in planes:
            for i, row in enumerate(plane):
                for j, value in enumerate(row):
                    right = row[j + 1] - value if j + 1 < len(row) else None
                    below = plane[i + 1][j] - value if i + 1 < len(plane) else None
                    across += [] if right is None else [right]
                    down += [] if below is None else [below]
                    both += [] if right is None or below is None else [math.hypot(right, below)]
    if kind == "isotropic":
        return sum(both) / len(both)
    power = 1 if kind == "anisotropic" else 2
    return sum(sum(abs(d) ** power for d in part) / len(part) for part in (across, down))


@pytest.mark.parametrize("double_opponents", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_against_loops_gradient_and_vmap(kind, double_opponents, vit, candidates, cpu, check):
    term = TotalVariation(1, kind, double_opponents).prepare(vit, None, cpu)
    small = candidates[:, :, :, :6, :9]
    assert float(term(small[0])) == pytest.approx(slow(small[0], kind, double_opponents), rel=1e-9)
    check(term, small)


@pytest.mark.parametrize("kind", KINDS)
def test_flat_pictures_cost_nothing_and_pull_nowhere(kind):
    flat = torch.full((1, 3, 8, 8), 0.3, requires_grad=True)
    value = total_variation(flat, kind, double_opponents=True)
    assert float(value.detach()) < 2e-6
    value.backward()
    assert not flat.grad.any()


def test_opponents_see_colour_where_channels_alone_do_not():
    step = (torch.arange(8) >= 4).double().expand(8, 8)
    grey = torch.stack([step, step, step])[None]
    coloured = torch.stack([step, 1 - step, step])[None]
    assert float(total_variation(grey)) == pytest.approx(float(total_variation(coloured)))
    assert float(total_variation(coloured, double_opponents=True)) > 2 * float(
        total_variation(grey, double_opponents=True)
    )


def test_refusals(vit, cpu):
    with pytest.raises(ConfigError, match="anisotropic, isotropic, squared"):
        TotalVariation(1, kind="l1")
    grey = replace(vit, image_shape=(1, 32, 32))
    with pytest.raises(NotApplicable, match="3 colour channels, not 1"):
        TotalVariation(1, double_opponents=True).prepare(grey, None, cpu)
    with pytest.raises(NotApplicable, match="several rows and columns"):
        TotalVariation(1).prepare(replace(vit, image_shape=(1, 1, 48)), None, cpu)
