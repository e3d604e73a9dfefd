"""What is said of a theorem is never more than it says."""

import math

from fedsim.bounds.robustness import GaussianDP
from fedsim.bounds.robustness_wording import OUTSIDE, lasting, probability, theorem_sentence


def test_no_number_is_said_smaller_than_it_is():
    said = [probability(value) for value in (0.0183, 0.5, 1.0, 0.99999, 2.31e-6)]
    assert said == ["0.019", "0.50", "1", "1.00", "2.4e-06"]
    assert math.isclose(float(probability(0.05)), 0.05)


def test_one_release_and_many():
    assert "after this one release, " in theorem_sentence(GaussianDP(0.5, 1, "image", 1e-5, "so"))
    many = theorem_sentence(GaussianDP(0.5, 1200, "image", 1e-5, "so"))
    assert "after these 1,200 releases, " in many
    assert "noise makes them together 0.5-Gaussian-DP (so)" in many
    assert " 0.448-Gaussian-DP" in theorem_sentence(GaussianDP(20**0.5 / 10, 20, "image", 1e-5, "so"))  # 0.4472…


def test_what_is_reported_without_noise_is_named_and_counts_as_known_before():
    told = theorem_sentence(GaussianDP(0.5, 1, "image", 1e-5, "so"))
    assert told.startswith("Whoever would rebuild an image with ")
    for one in ("training loss", "dal_loss", "numbers of images", "skipped steps", "loss and accuracy where clients"):
        assert one in OUTSIDE
    assert "known before" in OUTSIDE


def test_how_long_it_lasts():
    assert lasting(GaussianDP(2.0, 1, "image", 1e-5, "")).startswith("No such release keeps it at or below 0.05. ")
    assert lasting(GaussianDP(1.0, 4, "image", 1e-5, "")).startswith(
        "8 such releases keep it at or below 0.05, and no more. "
    )
    assert lasting(GaussianDP(0.0, 0, "image", 1e-5, "")) == OUTSIDE
