"""Draws are functions of the seed and the purpose, and leave the global generators alone."""

import random

import numpy as np
import torch

from fedsim.determinism import derive_seed, seeded_globals, torch_generator


def test_seeds_differ_by_purpose_and_type():
    seeds = {
        derive_seed(0, "a", 1),
        derive_seed(0, "a1"),
        derive_seed(0, "a", "1"),
        derive_seed(1, "a", 1),
        derive_seed(0, 1, "a"),
    }
    assert len(seeds) == 5
    assert derive_seed(3, "client", 2, 7) == derive_seed(3, "client", 2, 7)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seed_is_the_same_on_every_machine():
    # A changed derivation would silently change every published run.
    assert derive_seed(0, "client", 1, 2) == 4755856432676590220


def test_generators_repeat():
    first = torch.randn(4, generator=torch_generator(5, "x"))
    assert torch.equal(first, torch.randn(4, generator=torch_generator(5, "x")))
    assert not torch.equal(first, torch.randn(4, generator=torch_generator(5, "y")))


def test_global_generators_are_seeded_inside_and_restored_after():
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = (random.random(), np.random.rand(), torch.rand(1))
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    with seeded_globals(0, "a"):
        inside = (random.random(), np.random.rand(), torch.rand(1))
    assert (random.random(), np.random.rand(), torch.rand(1)) == expected
    with seeded_globals(0, "a"):
        assert (random.random(), np.random.rand(), torch.rand(1)) == inside
