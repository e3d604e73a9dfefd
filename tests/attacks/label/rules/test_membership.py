"""RLG against the gradients whose labels are known."""

import pytest
import torch
import torch.nn.functional as F

from attacks.label.rules.membership import negative_alone, rlg


def weight_gradient(labels, classes=50, width=32, scale=0.05, seed=0, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    h = F.layer_norm(torch.randn(len(labels), width, generator=rng, dtype=dtype), (width,))
    weight = (scale * torch.randn(classes, width, generator=rng, dtype=dtype)).requires_grad_()
    F.cross_entropy(h @ weight.T, torch.tensor(labels)).backward()
    return weight.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.02, 0.3])
def test_names_the_set_whatever_the_sign_of_the_features(scale, dtype):
    for seed in range(4):
        labels = torch.randint(50, (8,), generator=torch.Generator().manual_seed(seed)).tolist()
        gradient = weight_gradient(labels, scale=scale, seed=seed, dtype=dtype)
        assert rlg(gradient, 8).tolist() == sorted(set(labels))


def test_what_may_be_negative_elsewhere_too_is_counted_by_its_share():
    """(-1, a, -0.1) is negative at the first and at the last, by a tenth of that."""
    space = torch.tensor([[-1.0], [1.1], [-0.1]])
    assert negative_alone(space, 0.05).tolist() == [1]
    assert negative_alone(space, 0.11).tolist() == [0, 1]


def test_misses_none_where_it_names_too_many():
    for seed in range(5):
        labels = torch.randint(12, (8,), generator=torch.Generator().manual_seed(seed)).tolist()
        assert set(rlg(weight_gradient(labels, classes=12, seed=seed), 8).tolist()) >= set(labels)


def test_a_random_gradient_separates_nothing_like_the_truth():
    rng = torch.Generator().manual_seed(0)
    assert rlg(torch.randn(50, 32, generator=rng), 8).tolist() == []


def test_refuses_a_space_that_separates_every_class():
    with pytest.raises(ValueError, match="rank 9 for 10 classes separates each"):
        rlg(weight_gradient([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], classes=10), 10)


def test_a_gradient_of_zero_is_refused_in_words():
    with pytest.raises(ValueError, match="a gradient of zero tells no label"):
        rlg(torch.zeros(10, 8), 2)


def test_refuses_more_examples_than_features():
    """Their columns are no part of the space: it separated no class that was there, and said so of none."""
    with pytest.raises(ValueError, match="features of width 8 depend on each other"):
        rlg(weight_gradient(list(range(12)), width=8), 12)
