"""What is known of images before anything is shared: a Gaussian, white or smooth."""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from fedsim.errors import require


@runtime_checkable
class ImagePrior(Protocol):
    """A Gaussian of images in [0, 1], of mean μ and covariance C."""

    def whitened(self, images: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c h w"]:
        """C^-½(x - μ)."""

    def coloured(self, noise: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c h w"]:
        """μ + C^½z: undoes `whitened`."""

    def draw(self, shape: tuple[int, ...], rng: torch.Generator) -> Float[Tensor, "batch c h w"]:
        """Images within [0, 1], float64."""

    def centre(self, shape: tuple[int, ...]) -> Float[Tensor, "batch c h w"]:
        """μ, for each of a batch."""

    def covariance(
        self, shape: tuple[int, ...], rows: slice, columns: slice
    ) -> Float[Tensor, "window_pixels window_pixels"]:
        """C of a window's pixels, flat in (channel, row, column); `shape` is that of the whole image."""


def dct_matrix(size: int) -> Float[Tensor, "size size"]:
    """The orthonormal DCT-II, float64: a row is a frequency."""
    at = torch.arange(size, dtype=torch.float64)
    matrix = torch.cos(math.pi * (at[None] + 0.5) * at[:, None] / size) * math.sqrt(2.0 / size)
    matrix[0] /= math.sqrt(2.0)
    return matrix


def window_covariance(
    variance: Float[Tensor, "c h w"], axes: Float[Tensor, "c c"], rows: slice, columns: slice
) -> Float[Tensor, "window_pixels window_pixels"]:
    """Of a window's pixels, flat in (channel, row, column), where DCT coefficients along each axis are independent."""
    down, across = (dct_matrix(size)[:, part] for size, part in zip(variance.shape[1:], (rows, columns), strict=True))
    along = (variance[..., None] * across).mT @ across  # [d, frequency of rows, column, column]
    found = torch.einsum("ui,dujl,uk->dijkl", down, along, down)
    found = torch.einsum("dc,de,dijkl->cijekl", axes, axes, found)
    return found.reshape(math.isqrt(found.numel()), -1)


@dataclass(frozen=True)
class GaussianPrior:
    """Images around one gray, with standard deviations that fall with the frequency.

    Attributes:
        image_mean: of every pixel, in [0, 1].
        image_std: of a pixel.
        decay: amplitudes fall as 1/(1 + f)^decay, f in half periods an image; 0 is white, photographs are near 1.
        colour: the standard deviation of what channels differ in, as a share of that of their mean; 1 is white.
    """

    image_mean: float = 0.5
    image_std: float | int = 0.3
    decay: float | int = 1.0
    colour: float | int = 0.3

    def __post_init__(self) -> None:
        require("image_mean", self.image_mean, 0 <= self.image_mean <= 1, "a number from 0 to 1")
        require("image_std", self.image_std, self.image_std > 0, "a positive number")
        require("decay", self.decay, self.decay >= 0, "0 or more")
        require("colour", self.colour, 0 < self.colour <= 1, "a number above 0, at most 1")

    def spectrum(self, height: int, width: int) -> Float[Tensor, "height width"]:
        """The standard deviation of each DCT coefficient, float64."""
        rows, columns = (torch.arange(size, dtype=torch.float64) for size in (height, width))
        amplitude = (1.0 + torch.hypot(rows[:, None], columns[None])) ** -float(self.decay)
        found: Tensor = amplitude * (self.image_std / amplitude.square().mean().sqrt())
        return found

    def whitened(self, images: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c h w"]:
        """C^-½(x - μ) of images in [0, 1]: independent, of standard deviation 1 where the prior is true."""
        height, width = images.shape[-2:]
        rows, columns = dct_matrix(height).to(images), dct_matrix(width).to(images)
        found: Tensor = rows @ (images - self.image_mean) @ columns.T / self.spectrum(height, width).to(images)
        gray = found.mean(dim=1, keepdim=True)
        return (gray + (found - gray) / self.colour) / self._gray_std(images.shape[1])

    def coloured(self, noise: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c h w"]:
        """μ + C^½z: undoes `whitened`."""
        channels, height, width = noise.shape[1:]
        rows, columns = dct_matrix(height).to(noise), dct_matrix(width).to(noise)
        gray = noise.mean(dim=1, keepdim=True)
        coefficients = (gray + (noise - gray) * self.colour) * self._gray_std(channels)
        patterns: Tensor = rows.T @ (coefficients * self.spectrum(height, width).to(noise)) @ columns
        return self.image_mean + patterns

    def centre(self, shape: tuple[int, ...]) -> Float[Tensor, "batch c h w"]:
        """The mean, for each of a batch; float64."""
        return torch.full(shape, float(self.image_mean), dtype=torch.float64)

    def covariance(
        self, shape: tuple[int, ...], rows: slice, columns: slice
    ) -> Float[Tensor, "window_pixels window_pixels"]:
        """Of a window's pixels, flat in (channel, row, column); float64."""
        channels, *sides = shape
        stds = torch.tensor([1.0] + [self.colour] * (channels - 1), dtype=torch.float64) * self._gray_std(channels)
        variance = (stds[:, None, None] * self.spectrum(*sides)).square()
        return window_covariance(variance, dct_matrix(channels), rows, columns)

    def _gray_std(self, channels: int) -> float:
        """Of the channels' mean direction, where a pixel's variance over all channels is 1 on average."""
        return math.sqrt(channels / (1.0 + (channels - 1) * self.colour**2))

    def draw(self, shape: tuple[int, ...], rng: torch.Generator) -> Float[Tensor, "batch c h w"]:
        """Images of the prior, one pattern for all colours, within [0, 1]; float64."""
        count, channels, height, width = shape
        noise = torch.randn(count, 1, height, width, generator=rng, dtype=torch.float64)
        pattern = dct_matrix(height).T @ (noise * self.spectrum(height, width)) @ dct_matrix(width)
        return (self.image_mean + pattern).expand(count, channels, height, width).clamp(0.0, 1.0).contiguous()
