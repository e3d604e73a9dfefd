"""The assignment against every permutation."""

from itertools import permutations

import pytest
import torch

from fedsim.metrics.matching import match, pairwise_mse


def test_pairwise_mse_is_the_mean_over_pixels(rng: torch.Generator) -> None:
    originals = torch.rand(3, 2, 4, 5, generator=rng)
    images = torch.rand(4, 2, 4, 5, generator=rng)
    costs = pairwise_mse(originals, images)
    for i in range(3):
        for j in range(4):
            expected = (originals[i].double() - images[j].double()).square().mean().item()
            assert costs[i, j].item() == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(8))
def test_the_total_is_the_least_of_all_permutations(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    originals = torch.rand(5, 1, 4, 4, generator=rng)
    images = torch.rand(5, 1, 4, 4, generator=rng)
    costs = pairwise_mse(originals, images).tolist()
    best = min(permutations(range(5)), key=lambda order: sum(costs[i][j] for i, j in enumerate(order)))
    assert match(originals, images) == list(best)


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_fewer_reconstructions_leave_originals_unmatched(kept: int, rng: torch.Generator) -> None:
    originals = torch.rand(5, 3, 4, 4, generator=rng)
    chosen = [4, 0, 2][:kept]
    expected = {original: index for index, original in enumerate(chosen)}
    assert match(originals, originals[chosen]) == [expected.get(index) for index in range(5)]


def test_superfluous_reconstructions_are_left_out(rng: torch.Generator) -> None:
    originals = torch.rand(2, 3, 4, 4, generator=rng)
    images = torch.cat([torch.rand(3, 3, 4, 4, generator=rng), originals.flip(0)])
    assert match(originals, images) == [4, 3]


def test_a_reconstruction_that_is_not_finite_is_no_picture(rng: torch.Generator) -> None:
    originals = torch.rand(2, 1, 4, 4, generator=rng)
    images = originals.clone()
    images[0, 0, 0, 0] = torch.nan
    assert match(originals, images) == [None, 1]
