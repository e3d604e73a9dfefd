import numpy as np
import pytest

from fedsim.data.sources import divide
from fedsim.errors import ConfigError


def parts(labels, test, auxiliary, seed=0):
    rows = divide(labels, test, auxiliary, seed)
    return rows.train, rows.test, rows.auxiliary


def test_parts_are_disjoint_and_complete():
    train, test, auxiliary = parts([row % 7 for row in range(103)], 0.2, 0.1)
    assert sorted(np.concatenate([train, test, auxiliary])) == list(range(103))
    assert (len(test), len(auxiliary)) == (21, 10)


def test_each_class_gives_its_share_up_to_rounding():
    labels = np.repeat([0, 1, 2], [200, 100, 50])
    for part, fraction in zip(parts(labels.tolist(), 0.2, 0.1), (0.7, 0.2, 0.1), strict=True):
        shares = np.bincount(labels[part], minlength=3)
        assert np.abs(shares - fraction * np.array([200, 100, 50])).max() <= 1


def test_a_class_with_a_single_picture_stays_in_training_where_there_is_room():
    labels = [0] * 30 + [1] + [2] * 30 + [3]
    for seed in range(20):
        train, _, _ = parts(labels, 0.3, 0.3, seed)
        assert {labels[row] for row in train} == {0, 1, 2, 3}


def test_single_picture_classes_are_divided_at_random_where_there_is_no_room():
    train, test, auxiliary = parts(list(range(100)), 0.1, 0.2)
    assert (len(train), len(test), len(auxiliary)) == (70, 10, 20)
    assert set(parts(list(range(100)), 0.1, 0.2, seed=1)[1]) != set(test)


def test_training_rows_are_in_random_order():
    train, _, _ = parts(sorted(row % 2 for row in range(1000)), 0.0, 0.0)
    first_half = np.sort(train[:500])
    assert 200 < (first_half < 500).sum() < 300


def test_seed_replays_and_matters():
    labels = [row % 3 for row in range(60)]
    assert all(map(np.array_equal, parts(labels, 0.2, 0.2, 5), parts(labels, 0.2, 0.2, 5)))
    assert not np.array_equal(parts(labels, 0.2, 0.2, 5)[0], parts(labels, 0.2, 0.2, 6)[0])


def test_a_small_fraction_is_at_least_one_picture():
    assert len(parts([0, 1, 0, 1], 0.01, 0.0)[1]) == 1


@pytest.mark.parametrize(
    ("test", "auxiliary", "message"),
    [
        (1.0, 0.0, r"data\.test_fraction=1\.0: must be a fraction"),
        (-0.1, 0.0, r"data\.test_fraction=-0\.1"),
        (0.1, 2, r"data\.auxiliary_fraction=2"),
        (
            0.5,
            0.5,
            r"data\.test_fraction=0\.5: must be so small that, with auxiliary_fraction=0\.5, training pictures are",
        ),
    ],
)
def test_fractions_that_cannot_work(test, auxiliary, message):
    with pytest.raises(ConfigError, match=message):
        divide([0, 1] * 10, test, auxiliary, 0)
