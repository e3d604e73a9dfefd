"""Each measure against an independent implementation: scikit-image, or a NumPy loop that is obviously right."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor

from fedsim.metrics.image import PSNR_CAP, fft2d, fft2d_mjp, mse, psnr, ssim, ssim_sigma

Shape = tuple[int, int, int]
Measure = Callable[[Tensor, Tensor], Tensor]

SIZES = [(1, 8, 8), (3, 10, 12), (3, 11, 13), (1, 12, 12), (3, 32, 32), (1, 28, 28), (3, 224, 224)]


def pair(shape: Shape, rng: torch.Generator, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    originals = torch.rand(3, *shape, generator=rng, dtype=torch.float64)
    noise = 0.1 * torch.randn(3, *shape, generator=rng, dtype=torch.float64)
    return (originals + noise).clamp(0, 1).to(dtype), originals.to(dtype)


@pytest.mark.parametrize("shape", SIZES)
def test_psnr_and_mse_agree_with_skimage(shape: Shape, rng: torch.Generator) -> None:
    images, originals = pair(shape, rng)
    expected = [
        peak_signal_noise_ratio(x.numpy(), y.numpy(), data_range=1) for x, y in zip(originals, images, strict=True)
    ]
    np.testing.assert_allclose(psnr(images, originals), expected, rtol=1e-12)
    np.testing.assert_allclose(mse(images, originals), 10 ** (-np.array(expected) / 10), rtol=1e-10)


def test_an_exact_picture_has_a_finite_psnr(rng: torch.Generator) -> None:
    _, originals = pair((3, 8, 8), rng)
    assert psnr(originals, originals).tolist() == [PSNR_CAP] * 3
    assert mse(originals, originals).tolist() == [0.0] * 3


def test_psnr_does_not_lose_a_tiny_error_to_float32() -> None:
    originals = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    assert psnr(originals + 1e-12, originals).item() == pytest.approx(240.0)


@pytest.mark.parametrize("shape", SIZES)
def test_ssim_agrees_with_skimage_on_mirrored_pictures(shape: Shape, rng: torch.Generator) -> None:
    images, originals = pair(shape, rng)
    sigma = {8: 3 / 3.5, 10: 4 / 3.5}.get(min(shape[1:]), 1.5)
    radius = int(3.5 * sigma + 0.5)
    border = ((0, 0), (radius, radius), (radius, radius))
    expected = [
        structural_similarity(
            np.pad(x.numpy(), border, mode="reflect"),
            np.pad(y.numpy(), border, mode="reflect"),
            data_range=1,
            channel_axis=0,
            gaussian_weights=True,
            sigma=sigma,
            use_sample_covariance=False,
        )
        for x, y in zip(originals, images, strict=True)
    ]
    np.testing.assert_allclose(ssim(images, originals), expected, atol=1e-10)


def test_ssim_of_a_photo_sized_picture_is_close_to_skimage_as_it_comes(rng: torch.Generator) -> None:
    images, originals = pair((3, 224, 224), rng)
    expected = structural_similarity(
        originals[0].numpy(),
        images[0].numpy(),
        data_range=1,
        channel_axis=0,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
    )
    assert ssim(images, originals)[0].item() == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(("side", "window"), [(2, 3), (3, 3), (8, 7), (9, 9), (11, 11), (32, 11), (224, 11)])
def test_ssim_window_fits_the_picture(side: int, window: int) -> None:
    assert 2 * int(3.5 * ssim_sigma(side) + 0.5) + 1 == window
    picture = torch.rand(2, 1, side, side)
    np.testing.assert_allclose(ssim(picture, picture), 1.0, atol=1e-12)


def test_ssim_refuses_a_single_pixel() -> None:
    with pytest.raises(ValueError, match="at least 2×2"):
        ssim(torch.rand(1, 1, 1, 5), torch.rand(1, 1, 1, 5))


def spectrum_by_loop(image: np.ndarray) -> np.ndarray:
    """The 2D discrete Fourier transform of [C,H,W] as the sum that defines it."""
    _, height, width = image.shape
    rows, columns = np.arange(height), np.arange(width)
    spectrum = np.zeros(image.shape, dtype=complex)
    for u in range(height):
        for v in range(width):
            wave = np.exp(-2j * np.pi * (u * rows[:, None] / height + v * columns[None, :] / width))
            spectrum[:, u, v] = (image * wave).sum(axis=(1, 2))
    return spectrum.ravel()


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 6, 9)])
def test_spectrum_distances_agree_with_a_loop(shape: Shape, rng: torch.Generator) -> None:
    images, originals = pair(shape, rng)
    for index in range(3):
        U, V = spectrum_by_loop(images[index].numpy()), spectrum_by_loop(originals[index].numpy())
        expected = np.linalg.norm(np.abs(U) - np.abs(V)) / np.linalg.norm(np.abs(V))
        assert fft2d(images, originals)[index].item() == pytest.approx(expected, rel=1e-9)
        expected = abs(1 - (U * V).sum() / np.sqrt((U * U).sum() * (V * V).sum()))
        assert fft2d_mjp(images, originals)[index].item() == pytest.approx(expected, rel=1e-7, abs=1e-12)


def test_the_spectrum_distance_ignores_a_shift_and_the_complex_cosine_does_not(rng: torch.Generator) -> None:
    _, originals = pair((1, 8, 8), rng)
    shifted = originals.roll(3, dims=-1)
    assert fft2d(shifted, originals).max().item() < 1e-12
    assert fft2d_mjp(shifted, originals).min().item() > 1e-6


@pytest.mark.parametrize("corner", range(8))
def test_equal_pictures_whose_squares_cancel_are_equal(corner):
    """ΣU² of what lies off the centre of a black picture is rounding alone."""
    picture = torch.zeros(1, 3, 8, 8)
    picture[..., corner : corner + 3, 1:4] = 0.7
    assert fft2d_mjp(picture, picture).item() == 0.0


@pytest.mark.parametrize("measure", [fft2d, fft2d_mjp])
def test_spectrum_distances_are_defined_for_black_pictures(measure: Measure, rng: torch.Generator) -> None:
    black, picture = torch.zeros(1, 1, 4, 4), torch.rand(1, 1, 4, 4, generator=rng)
    assert measure(black, black).item() == 0.0
    assert measure(picture, black).item() == 1.0
    assert measure(black, picture).item() == pytest.approx(1.0)
    assert measure(picture, picture).item() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("measure", [mse, psnr, ssim, fft2d, fft2d_mjp])
def test_float32_gives_the_same_value_in_float64(measure: Measure, rng: torch.Generator) -> None:
    images, originals = pair((3, 16, 16), rng, torch.float32)
    values = measure(images, originals)
    assert values.shape == (3,)
    assert values.dtype == torch.float64
    assert torch.equal(values, measure(images.double(), originals.double()))
