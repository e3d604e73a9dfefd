"""Labels are multisets."""

import itertools
from collections import Counter
from statistics import fmean

import pytest
import torch

from fedsim.metrics.labels import assign_labels, even_share, exact_batch, label_share


@pytest.mark.parametrize(
    ("true", "recovered", "share", "exact", "assigned"),
    [
        ([3], [3], 1.0, True, [3]),
        ([3], [4], 0.0, False, [4]),
        ([1, 1, 2, 5], [5, 1, 2, 1], 1.0, True, [1, 1, 2, 5]),
        ([1, 1, 2, 5], [1, 2, 2, 7], 0.5, False, [1, 2, 2, 7]),
        ([1, 1, 2, 5], [1, 5], 0.5, False, [1, None, None, 5]),
        ([1, 2], [], 0.0, False, [None, None]),
        ([1, 2], [2, 1, 9], 1.0, False, [1, 2]),
    ],
)
def test_scores(true: list[int], recovered: list[int], share: float, exact: bool, assigned: list[int | None]) -> None:
    n, guess = torch.tensor(true), torch.tensor(recovered, dtype=torch.int64)
    assert label_share(n, guess) == share
    assert exact_batch(n, guess) is exact
    assert assign_labels(n, guess) == assigned


@pytest.mark.parametrize("seed", range(5))
def test_the_order_does_not_matter(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    true = torch.randint(4, (12,), generator=rng)
    recovered = torch.randint(4, (12,), generator=rng)
    shuffled = recovered[torch.randperm(12, generator=rng)]
    assert label_share(true, recovered) == label_share(true, shuffled)
    assigned = assign_labels(true, recovered)
    assert assigned == assign_labels(true, shuffled)
    assert sorted(label for label in assigned if label is not None) == sorted(recovered.tolist())
    right = sum(label == guess for label, guess in zip(true.tolist(), assigned, strict=True))
    assert right / 12 == label_share(true, recovered)


def test_an_empty_batch_has_no_share() -> None:
    with pytest.raises(ValueError, match="empty"):
        label_share(torch.tensor([], dtype=torch.int64), torch.tensor([1]))


@pytest.mark.parametrize("true", [[3], [0, 0, 2], [0, 1, 2, 3, 3], [1, 1, 1, 1, 0, 2, 1, 1, 3]])
def test_who_names_each_class_equally_often_is_right_so_often(true: list[int]) -> None:
    """Over every way in which the classes that are named once more can be drawn."""
    often, more = divmod(len(true), 4)
    guesses = [[*range(4)] * often + list(extra) for extra in itertools.combinations(range(4), more)]
    expected = fmean(label_share(torch.tensor(true), torch.tensor(guess)) for guess in guesses)
    assert even_share(Counter(true).values(), 4) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("counts", "named", "expected"),
    [
        ([8, 8], 2, 2 / 10 * 2 / 16),  # two classes of ten: a set names two of sixteen labels
        ([8, 8], 0, 0.0),
        ([1, 1], 10, 1.0),  # who names each class names those that are there
        ([2, 1], 20, 1.0),
    ],
)
def test_a_guess_names_as_many_labels_as_it_is_compared_with(counts: list[int], named: int, expected: float) -> None:
    assert even_share(counts, 10, named) == pytest.approx(expected)
