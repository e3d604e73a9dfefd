import itertools

import numpy as np
import pytest
import torch
from skimage.transform import AffineTransform, warp

from attacks.optimization.search.group import GroupConsistency, GroupState
from attacks.optimization.search.registration import group_distance, group_targets, matched_order, registered_mean


def seeds_of(pictures, noise, shift, stretch=0.0, pairs=3, seed=0):
    """[2·pairs,B,C,H,W]: each picture warped by random affine maps and by their inverses, and noise on top."""
    rng = np.random.default_rng(seed)
    side = pictures.shape[-1]
    centre = np.eye(3)
    centre[:2, 2] = -(side - 1) / 2
    seeds = []
    for _ in range(pairs):
        matrix = np.eye(3)
        matrix[:2, :2] += rng.uniform(-stretch, stretch, (2, 2))
        matrix[:2, 2] = rng.uniform(-shift, shift, 2) * side
        for direction in (matrix, np.linalg.inv(matrix)):
            transform = AffineTransform(matrix=np.linalg.inv(centre) @ direction @ centre)
            warped = [warp(p.permute(1, 2, 0).numpy(), transform, mode="edge", order=3) for p in pictures]
            seeds.append(np.stack(warped) + noise * rng.standard_normal((len(pictures), side, side, 3)))
    return torch.from_numpy(np.stack(seeds)).permute(0, 1, 4, 2, 3).contiguous()


@pytest.mark.parametrize(("side", "shift", "stretch"), [(32, 0.08, 0.0), (32, 0.06, 0.08), (112, 0.07, 0.1)])
@pytest.mark.parametrize("noise", [0.03, 0.2])
def test_recovers_a_photograph_from_misaligned_noisy_seeds(side, shift, stretch, noise, tools):
    pictures = tools.photographs(side)
    seeds = seeds_of(pictures, noise, shift, stretch)
    registered = registered_mean(seeds)
    for picture, found, blurred in zip(pictures, registered, seeds.mean(dim=0), strict=True):
        gain = tools.psnr(found, picture) - tools.psnr(blurred, picture)
        assert gain > (6 if noise < 0.1 else 2.5)


def test_seeds_in_line_give_the_plain_mean_to_the_bit(tools):
    for noise in (0.05, 0.5):
        seeds = seeds_of(tools.photographs(32), noise, shift=0.0)
        assert torch.equal(registered_mean(seeds), seeds.mean(dim=0))
    one = tools.detailed(2)[None]
    assert torch.equal(registered_mean(one), one[0])


def test_noise_without_a_picture_gives_the_plain_mean():
    for number in range(2):
        noise = torch.randn(6, 2, 3, 32, 32, generator=torch.Generator().manual_seed(number))
        assert torch.equal(registered_mean(noise), noise.mean(dim=0))


def test_seeds_that_are_not_finite_are_left_out(tools):
    seeds = seeds_of(tools.photographs(32), 0.05, shift=0.08)
    spoilt = torch.cat([seeds[:3], torch.full_like(seeds[:1], torch.nan), seeds[3:]])
    found = registered_mean(spoilt)
    assert float((found - registered_mean(seeds)).abs().mean()) < 0.02
    assert bool(found.isfinite().all())
    spoilt[:, 0] = torch.inf
    found = registered_mean(spoilt)
    assert bool(found[0].isnan().all())
    assert bool(found[1].isfinite().all())


def test_same_seeds_same_bits_and_nothing_written(tools):
    seeds = seeds_of(tools.photographs(32), 0.1, shift=0.08).float()
    before = seeds.clone()
    found = registered_mean(seeds)
    assert torch.equal(found, registered_mean(seeds))
    assert found.dtype == torch.float32
    assert torch.equal(seeds, before)


def shuffled(seeds, rng):
    """Each seed's pictures in an order of its own, and these orders."""
    orders = torch.stack([torch.randperm(seeds.shape[1], generator=rng) for _ in range(len(seeds))])
    return torch.stack([seed[order] for seed, order in zip(seeds, orders, strict=True)]), orders


def test_matched_order_against_all_permutations(tools, rng):
    pictures = torch.cat([tools.photographs(32), tools.photographs(32).flip(3), tools.detailed(1)])
    seeds, orders = shuffled(seeds_of(pictures, 0.2, shift=0.04), rng)
    matched = matched_order(seeds)
    for seed, order in zip(seeds, matched, strict=True):
        costs = {p: float((seed[list(p)] - seeds[0]).square().mean()) for p in itertools.permutations(range(5))}
        assert tuple(order.tolist()) == min(costs, key=costs.get)
    true = torch.stack([own[order] for own, order in zip(orders, matched, strict=True)])
    assert bool((true == true[0]).all())


def test_only_pictures_of_one_label_change_places(tools, rng):
    pictures = torch.cat([tools.photographs(32), tools.detailed(2)])
    seeds, _ = shuffled(seeds_of(pictures, 0.1, shift=0.0), rng)
    labels = torch.tensor([5, 5, 1, 2])
    matched = matched_order(seeds, labels)
    assert bool((labels[matched] == labels).all())
    assert torch.equal(matched_order(seeds, torch.arange(4)), torch.arange(4).expand(len(seeds), 4))


def test_seeds_that_are_not_finite_keep_their_order(tools, rng):
    seeds, _ = shuffled(seeds_of(tools.photographs(32), 0.1, shift=0.0), rng)
    seeds[0] = torch.nan
    assert matched_order(seeds)[0].tolist() == [0, 1]
    assert matched_order(seeds)[1:].sort(dim=1).values.tolist() == [[0, 1]] * 5
    assert matched_order(torch.full_like(seeds, torch.nan)).tolist() == [[0, 1]] * 6


def test_targets_in_each_seeds_own_order(tools, rng):
    seeds, orders = shuffled(seeds_of(tools.photographs(32), 0.05, shift=0.0), rng)
    targets = group_targets(seeds)
    assert targets.shape == seeds.shape
    for own, target in zip(orders, targets, strict=True):
        torch.testing.assert_close(target, tools.photographs(32)[own], rtol=0, atol=0.15)


def test_group_distance():
    images, mean = torch.rand(2, 2, 3, 4, 4, dtype=torch.float64).unbind()
    squares = ((images - mean).numpy() ** 2).reshape(2, -1)
    assert float(group_distance(images, mean)) == pytest.approx((squares.sum(axis=1) ** 0.5).mean())
    twice = mean + 2.0 * (images - mean)
    assert float(group_distance(twice, mean)) == pytest.approx(2.0 * float(group_distance(images, mean)))
    assert torch.autograd.gradcheck(lambda x: group_distance(x, mean), images.requires_grad_())


@pytest.mark.parametrize("side", [4, 8])
def test_a_groups_penalty_is_the_distance_over_all_pixels(side):
    seeds = torch.stack([torch.zeros(3, 2, side, side), torch.ones(3, 2, side, side)])
    state = GroupState(GroupConsistency(weight=0.01, register=False), victims=1, restarts=2)
    state.update(0, 1, seeds, [None])
    expected = 0.01 * (0.25 * 2 * side**2) ** 0.5
    torch.testing.assert_close(state.penalty(0, slice(0, 2), seeds), torch.full((2,), expected))
