"""How close two pictures are: pure functions of [B,C,H,W] in [0, 1], one value per picture.

Everything is computed in float64, whatever comes in, and returned in float64.
"""

from functools import lru_cache

import torch
from jaxtyping import Complex, Float
from torch import Tensor

C1, C2 = 0.01**2, 0.03**2
"""SSIM's constants for a peak of 1."""

PSNR_CAP = 300.0
"""dB that an exact picture gets instead of infinity; a float64 reconstruction seldom exceeds it."""

ROUNDING = 1e-12
"""Of a sum of squares of complex numbers, as which it counts as none: they may cancel."""

SSIM_SIGMA = 1.5
"""Width of the Gaussian window in pixels (Wang et al. 2004); 3.5 σ on each side makes it 11×11."""


def mse(
    images: Float[Tensor, "batch channels height width"], originals: Float[Tensor, "batch channels height width"]
) -> Float[Tensor, " batch"]:
    """Mean squared error over all pixels and channels."""
    return (images.double() - originals.double()).square().mean(dim=(1, 2, 3))


def psnr(
    images: Float[Tensor, "batch channels height width"], originals: Float[Tensor, "batch channels height width"]
) -> Float[Tensor, " batch"]:
    """Peak signal-to-noise ratio in dB, -10·log₁₀(MSE) for a peak of 1, at most `PSNR_CAP`.

    Written out, as torchmetrics rounds the factor to float32 even for float64 pictures.
    """
    return (-10.0 * mse(images, originals).log10()).clamp(max=PSNR_CAP)


def ssim(
    images: Float[Tensor, "batch channels height width"], originals: Float[Tensor, "batch channels height width"]
) -> Float[Tensor, " batch"]:
    """Structural similarity in [-1, 1], the mean over channels and over every pixel.

    The window is Gaussian, 11×11 with σ = 1.5, and the pictures are mirrored at their borders. Where the
    shorter side is below 11 pixels, the window shrinks to the largest odd size that fits into it, and σ with
    it: 7×7 with σ = 6/7 for an 8×8 picture. A value across sizes is therefore not one scale. scikit-image
    agrees after the pictures have been mirrored; as it comes it leaves the borders out.

    Raises:
        ValueError: a side is a single pixel.
    """
    side = min(images.shape[-2:])
    if side < 2:
        raise ValueError(f"SSIM of {tuple(images.shape[-2:])} pixels: at least 2×2 are needed")
    x, y = images.double(), originals.double()
    mean_x, mean_y, mean_xx, mean_yy, mean_xy = _blurred(torch.stack([x, y, x * x, y * y, x * y]), ssim_sigma(side))
    variance_x, variance_y = ((m - n * n).clamp(min=0) for m, n in ((mean_xx, mean_x), (mean_yy, mean_y)))
    likeness = (2 * mean_x * mean_y + C1) / (mean_x**2 + mean_y**2 + C1)
    contrast = (2 * (mean_xy - mean_x * mean_y) + C2) / (variance_x + variance_y + C2)
    values: Tensor = (likeness * contrast).mean(dim=(1, 2, 3))
    return values


def _blurred(stack: Float[Tensor, "n b c h w"], sigma: float) -> Float[Tensor, "n b c h w"]:
    """Gaussian window over mirrored borders, along one axis after the other."""
    rows, columns = (_window(side, sigma).to(stack.device) for side in stack.shape[-2:])
    return rows @ stack @ columns.T


@lru_cache(maxsize=8)
def _window(side: int, sigma: float) -> Float[Tensor, "side side"]:
    """The window at each pixel of a line, as a matrix: torch's float64 convolutions take four times as long."""
    radius = int(3.5 * sigma + 0.5)
    places = torch.arange(-radius, radius + 1)
    weights = torch.exp(-((places.double() / sigma) ** 2) / 2)
    mirrored = (torch.arange(side)[:, None] + places).abs()
    mirrored = torch.where(mirrored < side, mirrored, 2 * (side - 1) - mirrored)
    window = torch.zeros(side, side, dtype=torch.float64)
    return window.scatter_add_(1, mirrored, (weights / weights.sum()).expand(side, -1))


def ssim_sigma(side: int) -> float:
    """σ of `ssim`'s window for pictures whose shorter side has so many pixels."""
    return SSIM_SIGMA if side >= 11 else max(1, (side - 1) // 2) / 3.5


def fft2d(
    images: Float[Tensor, "batch channels height width"], originals: Float[Tensor, "batch channels height width"]
) -> Float[Tensor, " batch"]:
    """‖|F(x̂)| - |F(x)|‖₂ / ‖|F(x)|‖₂ of the amplitudes of the 2D spectra, all channels together.

    0 for equal pictures and for shifted ones (the phase is left out). GradInversion (Yin et al. 2021) names
    such a distance and prints no formula; this one is ours, so its numbers are not theirs. A black
    original has no spectrum to be relative to: 0 if the reconstruction is black as well, else 1.
    """
    amplitudes, expected = _spectrum(images).abs(), _spectrum(originals).abs()
    distance = torch.linalg.vector_norm(amplitudes - expected, dim=1)
    scale = torch.linalg.vector_norm(expected, dim=1)
    return torch.where(scale > 0, distance / scale.clamp(min=torch.finfo(scale.dtype).tiny), (distance > 0).double())


def fft2d_mjp(
    images: Float[Tensor, "batch channels height width"], originals: Float[Tensor, "batch channels height width"]
) -> Float[Tensor, " batch"]:
    """|1 - ΣUV / √(ΣU²·ΣV²)| of the flattened complex 2D spectra U, V, *without* conjugation.

    The number that the MJP paper (Ren et al. 2023, Table 5) prints as FFT. 0 for equal pictures. One with ΣU² = 0, as
    a black one, has no direction: 0 if both are the same, else 1.
    """
    U, V = _spectrum(images), _spectrum(originals)
    product = (U * V).sum(dim=1)
    scale = (U * U).sum(dim=1).sqrt() * (V * V).sum(dim=1).sqrt()
    energy = (U.abs().square().sum(dim=1) * V.abs().square().sum(dim=1)).sqrt()
    defined = scale.abs() > ROUNDING * energy
    cosine = product / torch.where(defined, scale, torch.ones_like(scale))
    return torch.where(defined, (1 - cosine).abs(), (U != V).any(dim=1).double())


def _spectrum(images: Float[Tensor, "batch channels height width"]) -> Complex[Tensor, "batch frequencies"]:
    spectrum: Tensor = torch.fft.fft2(images.double())
    return spectrum.flatten(1)
