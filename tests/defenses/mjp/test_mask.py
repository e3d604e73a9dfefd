import pytest
import torch

from defenses.mjp.mask import blockwise_masks, scaled_min_block
from tests.defenses.mjp import slow


@pytest.mark.parametrize("grid", [(14, 14), (8, 8), (5, 9)])
@pytest.mark.parametrize("ratio", [0.03, 0.1, 0.27, 0.9])
@pytest.mark.parametrize("min_block", [8, 3])
def test_the_same_draws_give_the_same_blocks_as_nested_loops(grid, ratio, min_block):
    fast = blockwise_masks(6, grid, ratio, min_block, torch.Generator().manual_seed(4))
    uniform = slow.Counted(torch.Generator().manual_seed(4))
    for mask in fast:
        assert mask.reshape(grid).tolist() == slow.mask_of(*grid, ratio, min_block, uniform)


@pytest.mark.parametrize(("ratio", "mean", "empty"), [(0.03, 0.0194, 0.159), (0.1, 0.095, 0.0), (0.27, 0.264, 0.0)])
def test_the_true_ratio_on_the_papers_grid(ratio, mean, empty, rng):
    masks = blockwise_masks(2000, (14, 14), ratio, 8, rng)
    assert float(masks.double().mean()) == pytest.approx(mean, abs=0.002)
    assert 1.0 - float(masks.any(dim=1).double().mean()) == pytest.approx(empty, abs=0.03)
    assert int(masks.sum(dim=1).max()) <= int(ratio * 196)


def test_small_grids_starve_at_the_papers_minimum_and_not_at_the_scaled_one(rng):
    papers, scaled = (blockwise_masks(2000, (8, 8), 0.1, smallest, rng).double() for smallest in (16, None))
    assert float(scaled.mean()) == pytest.approx(6 / 64, abs=0.002)
    assert float(papers.mean()) < 0.9 * float(scaled.mean())
    starved = blockwise_masks(2000, (8, 8), 0.03, 8, rng)
    assert float(starved.double().mean()) == pytest.approx(0.0065, abs=0.001)
    assert 1.0 - float(starved.any(dim=1).double().mean()) == pytest.approx(0.58, abs=0.04)


@pytest.mark.parametrize(("tokens", "smallest"), [(196, 8), (64, 3), (16, 1), (4, 1), (576, 24)])
def test_the_scaled_minimum(tokens, smallest):
    assert scaled_min_block(tokens) == smallest


@pytest.mark.parametrize(("ratio", "share"), [(0.0, 0.0), (0.015, 0.0), (1.0, 1.0)])
def test_nothing_and_everything_draw_nothing(ratio, share, rng):
    before = rng.get_state()
    assert float(blockwise_masks(1, (8, 8), ratio, 8, rng).double().mean()) == share
    assert torch.equal(rng.get_state(), before)


def test_every_position_is_masked_at_times_and_the_middle_more_often(rng):
    often = blockwise_masks(3000, (8, 8), 0.27, 3, rng).double().mean(dim=0).reshape(8, 8)
    assert float(often.min()) > 0.05
    assert float(often[3:5, 3:5].mean()) > float(often[0, 0])
    assert torch.allclose(often, often.flip(0), atol=0.05)
    assert torch.allclose(often, often.T, atol=0.05)
