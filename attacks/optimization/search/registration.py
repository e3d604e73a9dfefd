"""Reconstructions of one picture from several seeds, brought into line and averaged.

Group consistency (Yin et al. 2021, GradInversion) pulls every seed to the registered mean of all. The paper
registers by RANSAC-flow, a learned method. Here it is classical: a translation by cross-correlation, then an affine
map by coarse-to-fine least squares on the pixels. Feature matching with RANSAC finds too little in 32-pixel pictures
and in noise, and a dense flow fits the noise itself.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attacks.optimization.priors.alignment import COARSE_SIDE, align, blur, plausible, shrink, warp
from attacks.optimization.priors.base import TINY

MARGIN = 0.05
"""An alignment must lower the smoothed distance by this share: resampling alone smooths noise, and so lowers it too."""


@torch.no_grad()
def registered_mean(
    candidates: Float[Tensor, "seeds batch channels height width"], iterations: int = 1
) -> Float[Tensor, "batch channels height width"]:
    """The pixel mean of the seeds, each seed aligned to it, the mean again; `iterations` times.

    The first mean is too blurred to be aligned to: its place takes the seed that is nearest to it. An alignment is kept
    only where it brings the seed nearer to the mean than no alignment does, so that seeds with nothing in common give
    the plain mean, to the bit. Seeds with a value that is not finite are left out.
    """
    usable = candidates.isfinite().flatten(2).all(dim=2)
    images = torch.where(usable[:, :, None, None, None], candidates, 0.0)
    mean = _mean(images, usable)
    if len(candidates) < 2:
        return mean
    flat = images.flatten(0, 1)
    identity = torch.eye(2, 3).to(candidates).repeat(len(flat), 1, 1)

    def warped(maps: Float[Tensor, "n 2 3"]) -> Float[Tensor, "seeds batch channels height width"]:
        return warp(flat, maps).view_as(images)

    def where_tighter(maps: Float[Tensor, "n 2 3"]) -> Float[Tensor, "n 2 3"]:
        tighter = _tighter(warped(maps), images, usable).repeat(len(images))
        return torch.where(tighter[:, None, None], maps, identity)

    maps = where_tighter(_to_one_seed(images, mean, usable))
    for _ in range(iterations):
        target = _mean(warped(maps), usable).expand_as(images).flatten(0, 1)
        maps = _better(flat, target, identity, [maps, align(flat, target)])
    return _mean(warped(where_tighter(maps)), usable)


@torch.no_grad()
def matched_order(
    candidates: Float[Tensor, "seeds batch channels height width"],
    labels: Int[Tensor, "batch"] | None = None,
    rounds: int = 5,
) -> Int[Tensor, "seeds batch"]:
    """For each seed the order in which its b-th picture is everybody's b-th: `candidates[s, order[s]]`.

    Hungarian assignment on smoothed pictures, first to the first finite seed, then to the mean of all until nothing
    changes. With labels only pictures of the same label change places. A seed that is not finite keeps its order.
    """
    seeds, batch = candidates.shape[:2]
    smooth = blur(shrink(candidates.flatten(0, 1), COARSE_SIDE), COARSE_SIDE / 16).view(seeds, batch, -1).double()
    order = torch.arange(batch).repeat(seeds, 1)
    finite = [s for s in range(seeds) if bool(candidates[s].isfinite().all())]
    if not finite or batch == 1:
        return order.to(candidates.device)
    from scipy.optimize import linear_sum_assignment

    target = smooth[finite[0]]
    for _ in range(rounds):
        before = order.clone()
        for seed in finite:
            costs = torch.cdist(target, smooth[seed]).square()
            if labels is not None:
                foreign = (labels[:, None] != labels[None, :]).to(costs.device)
                costs = costs + foreign * (1.0 + costs.sum())
            order[seed] = torch.from_numpy(linear_sum_assignment(costs.cpu().numpy())[1])
        target = torch.stack([smooth[s, order[s].to(smooth.device)] for s in finite]).mean(dim=0)
        if torch.equal(order, before):
            break
    return order.to(candidates.device)


def group_targets(
    candidates: Float[Tensor, "seeds batch channels height width"],
    labels: Int[Tensor, "batch"] | None = None,
    iterations: int = 1,
) -> Float[Tensor, "seeds batch channels height width"]:
    """For every seed the registered mean of all, in that seed's own order of pictures."""
    order = matched_order(candidates, labels)
    seeds = torch.arange(len(candidates), device=candidates.device)[:, None]
    return registered_mean(candidates[seeds, order], iterations)[order.argsort(dim=1)]


def group_distance(
    images: Float[Tensor, "*seeds batch channels height width"],
    registered: Float[Tensor, "*seeds batch channels height width"],
) -> Float[Tensor, "*seeds"]:
    """‖x - x̄‖₂ from the registered mean of all seeds, the mean over the batch's pictures."""
    return ((images - registered).square().sum(dim=(-3, -2, -1)) + TINY).sqrt().mean(dim=-1)


def _to_one_seed(
    images: Float[Tensor, "seeds batch channels height width"],
    mean: Float[Tensor, "batch channels height width"],
    usable: Bool[Tensor, "seeds batch"],
) -> Float[Tensor, "n 2 3"]:
    """Maps that align every seed to the one nearest to the mean, then brought back to where most seeds stand.

    Where seed s follows the anchor by A_s, it stands in the common frame at A_s·M⁻¹, with M the interquartile mean of
    all A_s.
    """
    sigma = _smoothing(images)
    smooth_mean = blur(mean, sigma).expand_as(images).flatten(0, 1)
    distances = _distance(blur(images.flatten(0, 1), sigma), smooth_mean).view(usable.shape)
    nearest = torch.where(usable, distances, torch.inf).argmin(dim=0)
    anchors = images[nearest, torch.arange(len(nearest), device=nearest.device)]
    maps = align(images.flatten(0, 1), anchors.expand_as(images).flatten(0, 1))
    bottom = torch.tensor([0.0, 0.0, 1.0]).to(maps).expand(len(maps), 1, 3)
    square = torch.cat([maps, bottom], dim=1).view(*usable.shape, 3, 3)
    square = torch.where(usable[:, :, None, None], square, torch.eye(3).to(maps))
    quarter = len(images) // 4
    middle = square.sort(dim=0).values[quarter : len(images) - quarter].mean(dim=0)
    centred: Tensor = square @ torch.linalg.inv(middle)
    return centred[:, :, :2].flatten(0, 1)


def _tighter(
    aligned: Float[Tensor, "seeds batch channels height width"],
    images: Float[Tensor, "seeds batch channels height width"],
    usable: Bool[Tensor, "seeds batch"],
) -> Bool[Tensor, "batch"]:
    """Whether the aligned seeds lie nearer to their mean than the seeds as they are, smoothed and not."""
    sigma = _smoothing(images)

    def spread(seeds: Float[Tensor, "seeds batch channels height width"], smooth: bool) -> Float[Tensor, "batch"]:
        if smooth:
            seeds = blur(seeds.flatten(0, 1), sigma).view_as(seeds)
        distances = (seeds - _mean(seeds, usable)).square().mean(dim=(2, 3, 4))
        return torch.where(usable, distances, 0.0).sum(dim=0)

    nearer = spread(aligned, False) < spread(images, False)
    return nearer & (spread(aligned, True) < (1.0 - MARGIN) * spread(images, True))


def _better(
    images: Float[Tensor, "n channels height width"],
    targets: Float[Tensor, "n channels height width"],
    identity: Float[Tensor, "n 2 3"],
    proposals: list[Float[Tensor, "n 2 3"]],
) -> Float[Tensor, "n 2 3"]:
    """The proposal nearest to the target, or the identity where none beats it, smoothed and not."""
    sigma = _smoothing(images)
    smooth_targets = blur(targets, sigma)
    best, plain = identity, _distance(images, targets)
    bar = (1.0 - MARGIN) * _distance(blur(images, sigma), smooth_targets)
    for maps in proposals:
        warped = warp(images, maps)
        smooth = _distance(blur(warped, sigma), smooth_targets)
        good = (smooth < bar) & (_distance(warped, targets) < plain) & plausible(maps)
        best = torch.where(good[:, None, None], maps, best)
        bar = torch.where(good, smooth, bar)
    return best


def _smoothing(images: Float[Tensor, "*n height width"]) -> float:
    """The blur in pixels that takes most noise out before distances are compared."""
    return max(1.0, min(images.shape[-2:]) / 64)


def _mean(
    images: Float[Tensor, "seeds batch channels height width"], usable: Bool[Tensor, "seeds batch"]
) -> Float[Tensor, "batch channels height width"]:
    """NaN where no seed is usable."""
    return images.sum(dim=0) / usable.sum(dim=0)[:, None, None, None]


def _distance(a: Float[Tensor, "n *shape"], b: Float[Tensor, "n *shape"]) -> Float[Tensor, "n"]:
    return (a - b).square().flatten(1).mean(dim=1)
