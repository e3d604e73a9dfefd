"""Affine alignment of noisy pictures: a shift by cross-correlation, then coarse-to-fine least squares on the pixels."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

MAX_SHIFT = 0.5
"""A quarter of the side, in units of half a side."""
MAX_STRETCH = 0.3
"""Of the linear part, from the identity: some 17 degrees, or 30 % in size."""
COARSE_SIDE, FINE_SIDE = 32, 112
STEPS = 12
"""Levenberg-Marquardt steps at each scale."""


def align(
    pictures: Float[Tensor, "pictures channels height width"], targets: Float[Tensor, "pictures channels height width"]
) -> Float[Tensor, "pictures 2 3"]:
    """Affine maps A with pictures(A·(x, y, 1)) ≈ targets(x, y); coordinates in [-1, 1], as in `F.affine_grid`.

    Works on grey pictures of at most 112 px: on photographs right to a fraction of a pixel of that size.
    """
    grey, wanted = pictures.mean(dim=1, keepdim=True), targets.mean(dim=1, keepdim=True)
    maps = _translation(shrink(grey, COARSE_SIDE), shrink(wanted, COARSE_SIDE))
    for side, sigma in ((COARSE_SIDE, 2.0), (COARSE_SIDE, 1.0), (FINE_SIDE, 1.5)):
        maps = _refine(blur(shrink(grey, side), sigma), blur(shrink(wanted, side), sigma), maps)
    return maps


def plausible(maps: Float[Tensor, "n 2 3"]) -> Bool[Tensor, "n"]:
    stretch = (maps[:, :, :2] - torch.eye(2).to(maps)).abs().amax(dim=(1, 2))
    return (stretch <= MAX_STRETCH) & (maps[:, :, 2].abs().amax(dim=1) <= MAX_SHIFT)


def warp(
    pictures: Float[Tensor, "n channels height width"], maps: Float[Tensor, "n 2 3"]
) -> Float[Tensor, "n channels height width"]:
    """Bicubic, borders continued outward; where a map is the identity the picture is returned to the bit."""
    grid = F.affine_grid(maps, list(pictures.shape), align_corners=False)
    warped = F.grid_sample(pictures, grid, mode="bicubic", padding_mode="border", align_corners=False)
    still = (maps == torch.eye(2, 3).to(maps)).all(dim=2).all(dim=1)
    return torch.where(still[:, None, None, None], pictures, warped)


def blur(
    pictures: Float[Tensor, "n channels height width"], sigma: float | int
) -> Float[Tensor, "n channels height width"]:
    """Gaussian of `sigma` pixels, borders continued outward."""
    radius = max(1, round(3 * sigma))
    taps = torch.arange(-radius, radius + 1, dtype=pictures.dtype, device=pictures.device)
    kernel = torch.exp(-0.5 * (taps / sigma).square())
    kernel = kernel / kernel.sum()
    channels = pictures.shape[1]
    padded = F.pad(pictures, (radius, radius, radius, radius), mode="replicate")
    across = F.conv2d(padded, kernel.view(1, 1, 1, -1).repeat(channels, 1, 1, 1), groups=channels)
    return F.conv2d(across, kernel.view(1, 1, -1, 1).repeat(channels, 1, 1, 1), groups=channels)


def _translation(
    images: Float[Tensor, "n 1 height width"], targets: Float[Tensor, "n 1 height width"]
) -> Float[Tensor, "n 2 3"]:
    """The shift of highest circular cross-correlation, in whole pixels, within `MAX_SHIFT`."""
    height, width = images.shape[-2:]
    window = torch.hann_window(height, periodic=False)[:, None] * torch.hann_window(width, periodic=False)
    window = window.to(images)
    spectra = [torch.fft.rfft2((x - x.mean(dim=(2, 3), keepdim=True)) * window) for x in (images, targets)]
    correlation = torch.fft.irfft2(spectra[0] * spectra[1].conj(), s=(height, width))[:, 0]
    down = torch.fft.fftfreq(height, 1 / height).to(images)
    across = torch.fft.fftfreq(width, 1 / width).to(images)
    near = (down.abs()[:, None] <= MAX_SHIFT * height / 2) & (across.abs() <= MAX_SHIFT * width / 2)
    best = torch.where(near, correlation, -torch.inf).flatten(1).argmax(dim=1)
    maps = torch.eye(2, 3, dtype=images.dtype, device=images.device).repeat(len(images), 1, 1)
    maps[:, 0, 2] = 2.0 * across[best % width] / width
    maps[:, 1, 2] = 2.0 * down[best // width] / height
    return maps


def _refine(
    images: Float[Tensor, "n 1 height width"],
    targets: Float[Tensor, "n 1 height width"],
    maps: Float[Tensor, "n 2 3"],
) -> Float[Tensor, "n 2 3"]:
    """Levenberg-Marquardt on the six entries of every map at once, with a gain for pictures of other contrast."""
    targets = targets - targets.mean(dim=(2, 3), keepdim=True)
    images = images - images.mean(dim=(2, 3), keepdim=True)
    slopes = _slopes(images)
    damping = torch.full((len(maps),), 1e-2, dtype=maps.dtype, device=maps.device)
    residual, jacobian, cost = _linearised(images, slopes, targets, maps)
    for _ in range(STEPS):
        normal = torch.einsum("nip,njp->nij", jacobian, jacobian)
        diagonal = normal.diagonal(dim1=1, dim2=2)
        damped = normal + torch.diag_embed(damping[:, None] * diagonal + 1e-12 + 1e-9 * diagonal.amax(1, keepdim=True))
        # a singular system gives a step that is not finite, which is not taken
        step = torch.linalg.solve_ex(damped, torch.einsum("nip,np->ni", jacobian, residual)[:, :, None]).result
        trial = maps - step.view(-1, 2, 3)
        trial = torch.where(plausible(trial)[:, None, None], trial, maps)
        found = _linearised(images, slopes, targets, trial)
        good = found[2] < cost
        maps = torch.where(good[:, None, None], trial, maps)
        residual = torch.where(good[:, None], found[0], residual)
        jacobian = torch.where(good[:, None, None], found[1], jacobian)
        cost = torch.where(good, found[2], cost)
        damping = torch.where(good, damping / 5, damping * 5)
    return maps


def _linearised(
    images: Float[Tensor, "n 1 height width"],
    slopes: Float[Tensor, "n 2 height width"],
    targets: Float[Tensor, "n 1 height width"],
    maps: Float[Tensor, "n 2 3"],
) -> tuple[Float[Tensor, "n pixels"], Float[Tensor, "n 6 pixels"], Float[Tensor, "n"]]:
    """Residuals of the warped pictures, their derivative by the map, their mean square; outside pixels count 0."""
    grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    inside = (grid.abs() <= 1.0).all(dim=3).flatten(1).to(maps.dtype)
    warped = F.grid_sample(images, grid, padding_mode="border", align_corners=False).flatten(1)
    wanted = targets.flatten(1)
    gain = ((warped * wanted * inside).sum(1) / ((warped.square() * inside).sum(1) + 1e-12)).clamp(0.2, 5.0)
    residual = (gain[:, None] * warped - wanted) * inside
    slope = F.grid_sample(slopes, grid, padding_mode="border", align_corners=False).flatten(2)
    slope = slope * (gain[:, None] * inside)[:, None]
    straight = F.affine_grid(torch.eye(2, 3).to(maps)[None], [1, 1, *images.shape[2:]], align_corners=False)
    points = torch.cat([straight.view(-1, 2), torch.ones_like(straight.view(-1, 2)[:, :1])], dim=1)
    jacobian = torch.einsum("ndp,pk->ndkp", slope, points).flatten(1, 2)
    return residual, jacobian, residual.square().sum(dim=1) / inside.sum(dim=1).clamp(min=1.0)


def _slopes(images: Float[Tensor, "n 1 height width"]) -> Float[Tensor, "n 2 height width"]:
    """∂/∂x and ∂/∂y in units of half a side."""
    height, width = images.shape[-2:]
    padded = F.pad(images, (1, 1, 1, 1), mode="replicate")
    across = (padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]) * (width / 4)
    down = (padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]) * (height / 4)
    return torch.cat([across, down], dim=1)


def shrink(pictures: Float[Tensor, "n channels height width"], side: int) -> Float[Tensor, "n channels h w"]:
    """Scale images down so that the longer side is `side` at most."""
    factor = side / max(pictures.shape[-2:])
    if factor >= 1:
        return pictures
    shape = [max(8, round(length * factor)) for length in pictures.shape[-2:]]
    return F.interpolate(pictures, size=shape, mode="area")
