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


@pytest.mark.parametrize("seed", range(20))
def test_exact_pairs_come_first_then_recognisable_ones_then_decibels(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    originals = torch.rand(5, 1, 4, 4, generator=rng).double()
    images = originals + torch.tensor([1e-4, 0.05, 0.08, 0.3, 0.5])[:, None, None, None] * torch.randn(
        5, 1, 4, 4, generator=rng, dtype=torch.float64
    )
    decibels = (-10 * pairwise_mse(originals, images).log10()).clamp(0, 300).tolist()

    def rank(order: tuple[int, ...]) -> tuple[float, ...]:
        each = [decibels[i][j] for i, j in enumerate(order)]
        return sum(one >= 60 for one in each), sum(one >= 20 for one in each), sum(each)

    best = max(permutations(range(5)), key=rank)
    assert rank(best)[:2] >= (1, 2)
    assert match(originals, images) == list(best)


def test_the_least_total_error_would_lose_an_exact_image() -> None:
    one, other, bad = (torch.zeros(1, 1, 2) for _ in range(3))
    other[0, 0] = torch.tensor([0.4, 0.0])
    bad[0, 0] = torch.tensor([-0.6, 0.3])  # nearer to `one`, so that squared errors pull the exact `one` to `other`
    originals, images = torch.stack([one, other]), torch.stack([one, bad])
    errors = pairwise_mse(originals, images)
    assert errors[0, 1] + errors[1, 0] < errors[0, 0] + errors[1, 1]
    assert match(originals, images) == [0, 1]


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
