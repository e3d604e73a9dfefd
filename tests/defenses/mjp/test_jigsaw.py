import itertools
from collections import Counter

import torch

from defenses.mjp import jigsaw_order, shuffle_patches
from defenses.mjp.jigsaw import pixel_order, shuffle_pixels
from defenses.mjp.mask import blockwise_masks
from tests.defenses.mjp import slow

PATCH = (4, 2)


def case(rng):
    """Four pictures of 4x6 patches, one of them without a mask."""
    images = torch.randn(4, 3, 16, 12, generator=rng)
    mask = blockwise_masks(4, (4, 6), 0.3, 2, rng)
    mask[2] = False
    return images, mask


def test_orders_are_those_of_sorted_draws(rng):
    _, mask = case(rng)
    order = jigsaw_order(mask, torch.Generator().manual_seed(8))
    draws = torch.rand(int(mask.sum()), generator=torch.Generator().manual_seed(8), dtype=torch.float64).tolist()
    for picture, found in zip(mask.tolist(), order.tolist(), strict=True):
        count = sum(picture)
        assert found == slow.permuted(picture, draws[:count])
        draws = draws[count:]


def test_permutations_are_uniform(rng):
    mask = torch.tensor([False, True, False, True, True]).expand(6000, 5)
    found = Counter(tuple(order) for order in jigsaw_order(mask, rng).tolist())
    assert set(found) == {(0, a, 2, b, c) for a, b, c in itertools.permutations((1, 3, 4))}
    assert all(900 < count < 1100 for count in found.values())


def test_patches_move_as_in_loops_over_pixels(rng):
    images, mask = case(rng)
    order = jigsaw_order(mask, rng)
    found = shuffle_patches(images, order, PATCH)
    expected = [slow.rearranged(image, o, PATCH) for image, o in zip(images, order.tolist(), strict=True)]
    assert torch.equal(found, torch.stack(expected))
    assert torch.equal(found[2], images[2])
    assert not torch.equal(found, images)


def test_only_masked_patches_move(rng):
    images, mask = case(rng)
    before = images.clone()
    found = shuffle_patches(images, jigsaw_order(mask, rng), PATCH)
    assert torch.equal(images, before)
    for old, new, masked in zip(patches(images), patches(found), mask, strict=True):
        assert torch.equal(old[~masked], new[~masked])
        rows = [sorted(map(tuple, part[masked].tolist())) for part in (old, new)]
        assert rows[0] == rows[1]


def patches(images):
    return torch.nn.functional.unfold(images, PATCH, stride=PATCH).transpose(1, 2)


def test_there_and_back(rng):
    images, mask = case(rng)
    order = jigsaw_order(mask, rng)
    assert torch.equal(shuffle_patches(shuffle_patches(images, order, PATCH), order.argsort(dim=1), PATCH), images)


def test_channels_last_pictures_too(rng):
    images, mask = case(rng)
    order, pixels = jigsaw_order(mask, rng), pixel_order(4, PATCH, rng)
    last = images.to(memory_format=torch.channels_last)
    assert torch.equal(shuffle_patches(last, order, PATCH), shuffle_patches(images, order, PATCH))
    assert torch.equal(shuffle_pixels(last, mask, pixels, PATCH), shuffle_pixels(images, mask, pixels, PATCH))


def test_pixels_move_alike_in_every_masked_patch_and_channel(rng):
    images, mask = case(rng)
    order = pixel_order(4, PATCH, rng)
    assert torch.equal(order.sort(dim=1).values, torch.arange(8).expand(4, 8))
    assert len({tuple(o) for o in order.tolist()}) == 4
    found = shuffle_pixels(images, mask, order, PATCH)
    expected = [
        slow.rearranged(image, range(24), PATCH, {n: o for n in range(24) if masked[n]})
        for image, masked, o in zip(images, mask.tolist(), order.tolist(), strict=True)
    ]
    assert torch.equal(found, torch.stack(expected))
