"""Draws are functions of the seed and the purpose, and leave the global generators alone."""

import random

import numpy as np
import pytest
import torch

from fedsim.determinism import derive_seed, kept_globals, seeded_globals, torch_generator, torch_threads


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


def test_a_gpu_that_starts_later_takes_the_users_seed(monkeypatch):
    """Until CUDA has started torch keeps the last seed for it."""
    kept = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", kept.append)
    torch.manual_seed(5)
    with seeded_globals(0, "a"):
        assert kept[-1] == derive_seed(0, "a")
    assert kept[-1] == 5
    with pytest.raises(ZeroDivisionError), kept_globals(), seeded_globals(0, "a"):
        raise ZeroDivisionError
    assert kept[-1] == 5


def drawn():
    return random.random(), np.random.randn(), torch.rand(1)


def test_blocks_inside_a_kept_one_draw_the_same_and_it_restores_what_was_before():
    with seeded_globals(0, "a"):
        alone = drawn()
        with seeded_globals(0, "b"):
            drawn()
        behind = drawn()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    np.random.randn()  # NumPy keeps the second normal of a pair for the next call
    expected = drawn()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    np.random.randn()
    with kept_globals():
        for _ in range(2):
            with seeded_globals(0, "a"):
                assert drawn() == alone
                with seeded_globals(0, "b"):
                    drawn()
                assert drawn() == behind, "a block inside another's restores it"
    assert drawn() == expected


def test_a_block_s_threads_end_with_it():
    before = torch.get_num_threads()
    with torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    with pytest.raises(ZeroDivisionError), torch_threads(before + 2):
        raise ZeroDivisionError
    assert torch.get_num_threads() == before
