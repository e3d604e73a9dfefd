"""Robustness to corruptions, to hard pictures and to foreign ones, as the MJP paper reports it."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

ALEXNET: Mapping[str, float] = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
"""AlexNet's error on ImageNet-C, the mean over its five severities: what mCE is usually normalised by.

It says nothing of other pictures, of other corruptions' strengths, or of some of the severities.
"""


def mean_corruption_error(errors: Mapping[str, Sequence[float]], reference: Mapping[str, float] | None = None) -> float:
    """mCE of Hendrycks & Dietterich (2019): the mean over corruptions of Σ_s E_s ÷ Σ_s E_s of the reference.

    Args:
        errors: shares of wrong predictions, one for each severity.
        reference: the reference model's mean error over the same severities; None: the plain mean error, which is no
            mCE.

    Raises:
        ValueError: no errors, or a corruption without a reference above zero.
    """
    if not errors or not all(errors.values()):
        raise ValueError("no corruption errors")
    means = {name: float(np.mean(values)) for name, values in errors.items()}
    if reference is None:
        return float(np.mean(list(means.values())))
    if missing := [name for name in means if not reference.get(name, 0.0) > 0.0]:
        raise ValueError(f"no reference error above zero for {', '.join(missing)}")
    return float(np.mean([mean / reference[name] for name, mean in means.items()]))


def aurra(confidence: Float[np.ndarray, " pictures"], correct: Bool[np.ndarray, " pictures"]) -> float:
    """Area under the response-rate accuracy curve (Hendrycks et al. 2021, ImageNet-A).

    The mean over k of the accuracy on the k most confident predictions. Predictions of equal confidence count as
    their mean, so that the order of the pictures does not matter.

    Raises:
        ValueError: no predictions.
    """
    if len(confidence) == 0:
        raise ValueError("no predictions")
    _, level, counts = np.unique(-confidence, return_inverse=True, return_counts=True)
    shares = np.bincount(level, weights=correct.astype(np.float64)) / counts
    answered = np.cumsum(shares[np.sort(level)])
    return float(np.mean(answered / np.arange(1, len(confidence) + 1)))


def aupr(foreign: Float[np.ndarray, " foreign"], familiar: Float[np.ndarray, " familiar"]) -> float:
    """Area under the precision-recall curve of finding foreign pictures by their anomaly score (ImageNet-O).

    The average precision Σ (R_k - R_{k-1}) P_k over the distinct scores; chance is the share of foreign pictures.
    The authors' score is minus the largest softmax probability.

    Raises:
        ValueError: one of the two sets is empty.
    """
    if len(foreign) == 0 or len(familiar) == 0:
        raise ValueError("pictures of both kinds are needed")
    from sklearn.metrics import average_precision_score

    is_foreign = np.arange(len(foreign) + len(familiar)) < len(foreign)
    return float(average_precision_score(is_foreign, np.concatenate([foreign, familiar])))
