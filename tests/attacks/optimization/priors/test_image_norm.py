import numpy as np
import pytest
import torch

from attacks.optimization.priors import ImageNorm
from attacks.optimization.priors.image_norm import image_norm
from fedsim.errors import ConfigError


@pytest.mark.parametrize("kind", ["square", "norm"])
def test_against_numpy_gradient_and_vmap(kind, vit, candidates, cpu, check):
    term = ImageNorm(1, kind).prepare(vit, None, cpu)
    sizes = [np.linalg.norm(picture.ravel()) for picture in candidates[0].numpy()]
    expected = {"square": np.mean(np.square(sizes)), "norm": np.mean(sizes)}[kind]
    assert float(term(candidates[0])) == pytest.approx(expected, rel=1e-12)
    check(term, candidates)


def test_the_mean_colour_pulls_nowhere():
    flat = torch.zeros(1, 3, 4, 4, requires_grad=True)
    image_norm(flat, "norm").backward()
    assert not flat.grad.any()


def test_refuses_other_kinds():
    with pytest.raises(ConfigError, match="one of square, norm"):
        ImageNorm(1, kind="l2")
