"""Scores of what an attack rebuilt: pictures, spectra, perception, labels."""

from fedsim.metrics.image import PSNR_CAP, fft2d, fft2d_mjp, mse, psnr, ssim
from fedsim.metrics.labels import assign_labels, exact_batch, label_share
from fedsim.metrics.matching import match, pairwise_mse
from fedsim.metrics.perceptual import lpips, lpips_hint
from fedsim.metrics.records import ImageScore, LabelScore, Scores
from fedsim.metrics.score import score, score_labels

__all__ = [
    "PSNR_CAP",
    "ImageScore",
    "LabelScore",
    "Scores",
    "assign_labels",
    "exact_batch",
    "fft2d",
    "fft2d_mjp",
    "label_share",
    "lpips",
    "lpips_hint",
    "match",
    "mse",
    "pairwise_mse",
    "psnr",
    "score",
    "score_labels",
    "ssim",
]
