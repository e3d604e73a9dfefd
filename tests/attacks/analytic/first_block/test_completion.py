"""Tokens that are missing of an image, by the attention of its others."""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from attacks.analytic.first_block import FirstBlock
from attacks.analytic.first_block.attack import _attention, _Problem, _problem
from attacks.analytic.first_block.completion import MOST_MISSING
from attacks.analytic.first_block.grouping import group
from attacks.analytic.linear.patches import patchify
from fedsim.observation import Observation


@pytest.fixture(scope="module")
def pictures(tools: ModuleType) -> Tensor:
    """Three, the third upside down."""
    two = tools.photographs(24)
    return torch.cat([two, two[:1].flip(2)])


@pytest.fixture(scope="module")
def triple(pictures: Tensor, tools: ModuleType) -> Observation:
    spec = tools.tiny(img_size=24, patch_size=8, dtype="float64", kwargs={"depth": 2})
    return tools.observe(spec, pictures, [3, 5, 7])


@pytest.fixture(scope="module")
def problem(triple: Observation) -> _Problem:
    return _problem(triple, torch.device("cpu"))


@pytest.fixture(scope="module")
def truth(triple: Observation, problem: _Problem, pictures: Tensor) -> Tensor:
    """x of each position and image."""
    found = []
    for image in triple.normalised(pictures):
        z = problem.behind_attention(patchify(image[None], (8, 8)))
        found.append((z - problem.tokens.tokens.base) @ problem.tokens.tokens.directions)
    return torch.stack(found, dim=1)


def test_few_missing_tokens_are_near_what_attention_says_of_them(problem: _Problem, truth: Tensor) -> None:
    x, rng = truth.clone(), torch.Generator().manual_seed(0)
    gaps = {1: 0, 4: 0, 6: 2}  # of position and image
    for position, image in gaps.items():
        x[position, image:] = torch.cat([truth[position, image + 1 :], torch.full_like(truth[:1, 0], torch.inf)])
    size, found = float(truth.norm(dim=2).median()), {}
    for _ in range(10):
        told = _attention(problem).missing(x, size, rng)
        found |= {position: told[position] for position in gaps if told[position].isfinite().all()}
        assert not told[[0, 2, 3, 5, 7, 8]].isfinite().any()
    assert found.keys() == gaps.keys()
    for position, image in gaps.items():
        assert float((found[position] - truth[position, image]).norm()) < 0.05 * size


def test_an_image_that_lacks_more_tells_nothing(problem: _Problem, truth: Tensor) -> None:
    x = truth.clone()
    x[: MOST_MISSING + 1, 2] = torch.inf
    assert not _attention(problem).missing(x, 1.0, torch.Generator().manual_seed(0)).isfinite().any()


def test_tokens_are_grouped_though_half_of_an_image_is_missing(problem: _Problem, truth: Tensor) -> None:
    rng = torch.Generator().manual_seed(0)
    patches, outputs = problem.tokens.split(truth)
    z = torch.stack([_attention(problem).embed(part, torch.arange(9)) for part in patches.unbind(dim=1)], dim=1)
    known = torch.ones(9, 3, dtype=torch.bool)
    known[[0, 3, 5, 8], 1] = False
    z[~known], outputs[~known] = z[0, 0].clone(), outputs[0, 0].clone()  # what fills a gap is another image's
    shuffled = torch.stack([torch.randperm(3, generator=rng) for _ in range(9)])
    rows = torch.arange(9)[:, None]
    order, _ = group(z[rows, shuffled], outputs[rows, shuffled], problem.block.attend, 8, known[rows, shuffled])
    found = shuffled.gather(1, order)
    assert sorted(int(column.mode().values) for column in found.T) == [0, 1, 2]
    for column in found.T:
        own = int(column.mode().values)
        assert bool((column[known[torch.arange(9), column]] == own).all())


def test_three_images_come_back_exactly(triple: Observation, pictures: Tensor, tools: ModuleType) -> None:
    result = FirstBlock()(triple, torch.Generator().manual_seed(0), torch.device("cpu"))
    assert result.images is not None
    assert result.certificate.certified, result.certificate
    for picture in pictures:
        assert max(tools.psnr(one, picture) for one in result.images) > 80.0
