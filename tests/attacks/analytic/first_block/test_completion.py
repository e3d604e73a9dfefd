"""Tokens that are missing of an image, by the attention of its others."""

import copy
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from attacks.analytic.first_block import FirstBlock, search
from attacks.analytic.first_block.attack import _attention, _Problem, _problem
from attacks.analytic.first_block.completion import MOST_MISSING
from attacks.analytic.first_block.grouping import group
from attacks.analytic.first_block.solutions import Solutions
from attacks.analytic.linear.patches import patchify
from attacks.session import Session
from fedsim.observation import Observation
from tests.attacks.optimization.test_engine import KilledError


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


def without(truth: Tensor, gaps: dict[int, int]) -> Solutions:
    """All solutions but those of one image at each of some positions."""
    found = Solutions.none(truth[:, 0], 3, truth.shape[2])
    for position in range(len(truth)):
        held = [image for image in range(3) if gaps.get(position) != image]
        found.x[position, : len(held)] = truth[position, held]
        found.counts[position] = len(held)
    return found


def test_few_missing_tokens_are_near_what_attention_says_of_them(problem: _Problem, truth: Tensor) -> None:
    rng, gaps = torch.Generator().manual_seed(0), {1: 0, 4: 0, 6: 2}  # of position and image
    solutions = without(truth, gaps)
    size, found = float(truth.norm(dim=2).median()), {}
    for _ in range(10):
        told = _attention(problem).missing(solutions, size, rng)
        found |= {position: told[position] for position in gaps if told[position].isfinite().all()}
        assert not told[[0, 2, 3, 5, 7, 8]].isfinite().any()
        if found.keys() == gaps.keys():
            break
    assert found.keys() == gaps.keys()
    for position, image in gaps.items():
        assert float((found[position] - truth[position, image]).norm()) < 0.05 * size


def test_an_image_that_lacks_more_tells_nothing(problem: _Problem, truth: Tensor) -> None:
    lacking = without(truth, dict.fromkeys(range(MOST_MISSING + 1), 2))
    assert not _attention(problem).missing(lacking, 1.0, torch.Generator().manual_seed(0)).isfinite().any()


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


def test_one_token_alone_is_grouped_too() -> None:
    tokens, known = (
        torch.randn(8, 2, 16, generator=torch.Generator().manual_seed(0)),
        torch.zeros(8, 2, dtype=torch.bool),
    )
    known[3, 0] = True
    order, error = group(tokens, tokens, lambda queries, members: torch.zeros_like(queries), 8, known)
    assert order.sort(dim=1).values.tolist() == [[0, 1]] * 8
    assert error == pytest.approx(1.0)


def test_positions_that_know_one_token_each_go_to_the_image_whose_outputs_are_theirs() -> None:
    """Images read their mean, and differ by no more than their tokens do."""
    rng = torch.Generator().manual_seed(0)
    tokens = torch.randn(8, 2, 16, generator=rng, dtype=torch.float64)
    tokens[1::2, 0] += 1.0 / 4.0
    known = torch.tensor([[True, False]]).expand(8, 2)

    def attend(queries: Tensor, members: Tensor) -> Tensor:
        return members.mean(dim=0).expand(len(queries), -1)

    outputs = torch.zeros_like(tokens)
    for own in (slice(0, None, 2), slice(1, None, 2)):
        outputs[own, 0] = tokens[own, 0].mean(dim=0)
    order, error = group(tokens, outputs, attend, 8, known)
    at = (order == 0).nonzero()[:, 1]  # the image that each known token went to
    assert len(at[::2].unique()) == len(at[1::2].unique()) == 1
    assert at[0] != at[1]
    assert error < 1e-12


class Kept(Session):
    """Holds what was saved last, and is killed at the second time."""

    def __init__(self) -> None:
        self.saved: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        self.saves = 0

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        return self.saved

    def save(self, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
        self.saves += 1
        if self.saves == 2:
            raise KilledError
        self.saved = {name: tensor.clone() for name, tensor in tensors.items()}, copy.deepcopy(record)


def test_a_search_that_was_killed_goes_on(triple: Observation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SAVE_EVERY", 1)
    whole = FirstBlock(starts=3)(triple, torch.Generator().manual_seed(0), torch.device("cpu"))
    killed = FirstBlock(starts=3)
    killed.session = Kept()
    with pytest.raises(KilledError):
        killed(triple, torch.Generator().manual_seed(0), torch.device("cpu"))
    again = killed(triple, torch.Generator().manual_seed(0), torch.device("cpu"))
    assert whole.images is not None
    assert again.images is not None
    assert torch.equal(again.images, whole.images)
    assert len(again.trace) == len(whole.trace)
    tensors, _ = killed.session.saved or pytest.fail("nothing was saved")
    tensors["x"] += 1.0  # the coordinates of another machine
    killed.session.saves = 2
    anew = killed(triple, torch.Generator().manual_seed(0), torch.device("cpu"))
    assert anew.images is not None
    assert torch.equal(anew.images, whole.images)


def test_three_images_come_back_exactly(triple: Observation, pictures: Tensor, tools: ModuleType) -> None:
    result = FirstBlock()(triple, torch.Generator().manual_seed(0), torch.device("cpu"))
    assert result.images is not None
    assert result.certificate.certified, result.certificate
    for picture in pictures:
        assert max(tools.psnr(one, picture) for one in result.images) > 80.0
