import numpy as np
import pytest

from fedsim.data.corruptions import NAMES
from fedsim.metrics.robustness import ALEXNET, aupr, aurra, mean_corruption_error


def slow_aurra(confidence, correct):
    """Answer the k most confident, for every k."""
    order = sorted(range(len(confidence)), key=lambda n: -confidence[n])
    shares = [sum(correct[n] for n in order[:k]) / k for k in range(1, len(order) + 1)]
    return sum(shares) / len(shares)


def test_aurra_against_every_response_rate():
    rng = np.random.default_rng(0)
    confidence, correct = rng.random(50), rng.random(50) < 0.6
    assert aurra(confidence, correct) == pytest.approx(slow_aurra(confidence, correct), rel=1e-12)


def test_aurra_of_extremes():
    correct = np.array([True, True, False, False])
    assert aurra(np.array([0.9, 0.8, 0.2, 0.1]), correct) == pytest.approx((1 + 1 + 2 / 3 + 2 / 4) / 4)
    assert aurra(np.array([0.1, 0.2, 0.8, 0.9]), correct) == pytest.approx((0 + 0 + 1 / 3 + 2 / 4) / 4)
    assert aurra(np.ones(4), correct) == pytest.approx(0.5)


def test_aurra_is_the_mean_over_the_orders_of_equal_confidences():
    rng = np.random.default_rng(1)
    confidence, correct = rng.integers(0, 4, 30).astype(float), rng.random(30) < 0.5
    expected = np.mean([slow_aurra(confidence[p], correct[p]) for p in (rng.permutation(30) for _ in range(4000))])
    assert aurra(confidence, correct) == pytest.approx(expected, abs=2e-3)
    shuffled = rng.permutation(30)
    assert aurra(confidence[shuffled], correct[shuffled]) == pytest.approx(aurra(confidence, correct), rel=1e-12)


def slow_aupr(foreign, familiar):
    """Call foreign what scores at least so much, for every score from the highest to the lowest."""
    found, area = 0.0, 0.0
    for level in sorted({*foreign, *familiar}, reverse=True):
        right, wrong = (sum(score >= level for score in scores) for scores in (foreign, familiar))
        area += (right / len(foreign) - found) * right / (right + wrong)
        found = right / len(foreign)
    return area


@pytest.mark.parametrize("levels", [10**6, 5])  # all scores different, and many of them equal
def test_aupr_against_every_level(levels):
    rng = np.random.default_rng(2)
    foreign, familiar = (rng.integers(0, levels, n).astype(float) + shift for n, shift in ((30, 1), (80, 0)))
    assert aupr(foreign, familiar) == pytest.approx(slow_aupr(foreign, familiar), rel=1e-12)


def test_aupr_of_extremes():
    assert aupr(np.array([2.0, 3.0]), np.array([0.0, 1.0])) == 1.0
    assert aupr(np.zeros(3), np.zeros(9)) == pytest.approx(0.25)


def test_mce_of_the_reference_itself_is_one():
    own = {name: [error] * 5 for name, error in ALEXNET.items()}
    assert mean_corruption_error(own, ALEXNET) == pytest.approx(1.0)
    assert set(ALEXNET) == set(NAMES)


def test_mce_in_closed_form():
    errors = {"fog": [0.2, 0.4], "snow": [0.6, 0.6]}
    assert mean_corruption_error(errors) == pytest.approx(0.45)
    assert mean_corruption_error(errors, {"fog": 0.6, "snow": 0.3}) == pytest.approx((0.5 + 2.0) / 2)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: mean_corruption_error({}), "no corruption errors"),
        (lambda: mean_corruption_error({"fog": []}), "no corruption errors"),
        (lambda: mean_corruption_error({"fog": [0.5]}, {"snow": 0.5}), "fog"),
        (lambda: mean_corruption_error({"fog": [0.5]}, {"fog": 0.0}), "fog"),
        (lambda: aurra(np.array([]), np.array([], dtype=bool)), "no predictions"),
        (lambda: aupr(np.array([]), np.array([1.0])), "both kinds"),
    ],
)
def test_refuses(call, word):
    with pytest.raises(ValueError, match=word):
        call()
