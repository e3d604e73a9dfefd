"""What public images tell of private ones: their mean, and how much each frequency of each colour varies."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsim.bounds.gaussian_prior import dct_matrix, window_covariance
from fedsim.errors import require

MOST_IMAGES = 512
"""Of which the moments are taken."""
COUNTS_AS = 8.0
"""As many images as the common gray, and the mean over like frequencies, count for beside what was seen."""
SAME = 0.5 / 255 + 1e-5
"""Of a pixel in [0, 1]: what rounding, to 8 bits too, may leave between an image and itself."""
LEAST_STD = 1e-3
"""Of a coefficient: what never varied in public may vary."""


@dataclass(frozen=True)
class PublicPrior:
    """A Gaussian with the moments of public images: independent in frequency (DCT) and in the axes of their colours.

    Attributes:
        mean: of the images, in [0, 1], float64.
        axes: orthonormal; a row is an axis of colour.
        spectrum: the standard deviation of each DCT coefficient along each axis.
        seen_mean: of what a client's model sees of such images, where its defenses change them.
        own_share: the regression of an image on what the model sees of it, one number for all pixels.
        mirrors: where the model sees mirror images, beside the images or alone, and nothing else: of each kind whether
            rows are reversed, whether columns are, and its share.
    """

    mean: Float[Tensor, "c h w"]
    axes: Float[Tensor, "c c"]
    spectrum: Float[Tensor, "c h w"]
    seen_mean: Float[Tensor, "c h w"] | None = None
    own_share: Float[Tensor, ""] | None = None
    mirrors: Float[Tensor, "kinds 3"] | None = None

    @classmethod
    def of(
        cls, images: Float[Tensor, "batch c h w"], seen: Float[Tensor, "batch c h w"] | None = None
    ) -> "PublicPrior":
        """From images in [0, 1], on the CPU. Few of them are trusted less: see `COUNTS_AS`.

        Args:
            seen: what a client's model would see of each.

        Raises:
            ConfigError: there is none.
        """
        count = len(images)
        require("images", tuple(images.shape), count >= 1, "one public image or more")
        images = images.detach().cpu().double()
        mean = _mean(images)
        centred = images - mean
        colours = torch.einsum("bchw,bdhw->cd", centred, centred) / max(centred[:, 0].numel(), 1)
        axes = torch.linalg.eigh(colours).eigenvectors.T.flip(0).contiguous()
        squares = _coefficients(centred, axes).square().mean(dim=0)
        variance = (count * squares + COUNTS_AS * _by_frequency(squares)) / (count + COUNTS_AS)
        prior = cls(mean, axes, variance.clamp(min=LEAST_STD**2).sqrt())
        if seen is None:
            return prior
        seen = seen.detach().cpu().double().clamp(0.0, 1.0)
        seen_mean = _mean(seen)
        changed = seen - seen_mean
        share = (changed * centred).sum() / changed.square().sum().clamp(min=1e-30)
        mirrors = _mirrors(images.clamp(0.0, 1.0), seen)
        return replace(prior, seen_mean=seen_mean, own_share=share, mirrors=mirrors)

    @classmethod
    def of_class(cls, images: Float[Tensor, "batch c h w"], labels: Int[Tensor, " batch"], label: int) -> "PublicPrior":
        """A prior of one class: its mean is drawn towards that of all images, less where classes differ much.

        Means of classes are random effects (best linear unbiased prediction, Henderson 1975; components of variance as
        in an unbalanced one-way layout, Searle 1971): of a class without images it is about the prior of all, and what
        the mean of few may be off adds to the spectrum. There the spread within classes counts as `COUNTS_AS` images.

        Raises:
            ConfigError: there is no image.
        """
        whole = cls.of(images)
        apart = _coefficients(images.detach().cpu().double() - whole.mean, whole.axes)
        of_each, counts = labels.unique(return_inverse=True, return_counts=True)[1:]
        number, classes = len(images), len(counts)
        if not 1 < classes < number:  # of one class all are, and of images with a class each nothing tells them apart
            return whole
        means = apart.new_zeros(classes, *apart.shape[1:]).index_add(0, of_each, apart) / counts.view(-1, 1, 1, 1)
        seen = number - classes
        within = (apart - means[of_each]).square().sum(0) / seen
        between = (counts.view(-1, 1, 1, 1) * (means - apart.mean(0)).square()).sum(0) / (classes - 1)
        size = (number - counts.square().sum() / number) / (classes - 1)
        variance = ((between - within) / size).clamp(min=0.0)
        within = (seen * within + COUNTS_AS * _by_frequency(within)) / (seen + COUNTS_AS)
        own = apart[labels == label]
        count, mean = len(own), own.mean(0) if len(own) else torch.zeros_like(within)
        share = count * variance / (count * variance + within).clamp(min=LEAST_STD**2)
        squares = (own - mean).square().sum(0) + COUNTS_AS * within
        spread = squares / (max(count - 1, 0) + COUNTS_AS) + (1.0 - share) * variance
        spread += ((1.0 - share) * apart.mean(0)).square()  # the mean of all was drawn towards its gray
        alike = replace(whole, spectrum=torch.ones_like(spread))
        return replace(
            whole, mean=alike.coloured((share * mean)[None])[0], spectrum=spread.clamp(min=LEAST_STD**2).sqrt()
        )

    def unchanged(self) -> "PublicPrior":
        """The same where a client's model sees images as they are."""
        return replace(self, seen_mean=None, own_share=None, mirrors=None)

    def own_images(self, seen: Float[Tensor, "batch c h w"], among: int = 1) -> Float[Tensor, "batch c h w"] | None:
        """The best guess at the client's own images from what its model saw; None where they are the same.

        Of mirror images the likelier one, else the best linear one.

        Args:
            among: how many images each of `seen` may be of, or a mixture of by weights that nobody knows: their mean
                is 1/among, and so is that of the covariance with any one of them.
        """
        if self.seen_mean is None or self.own_share is None:
            return None
        if self.mirrors is not None and among == 1:
            each = torch.stack([_mirrored(seen, kind) for kind in self.mirrors])
            unlikely = torch.stack([self.whitened(one.double()).square().flatten(1).sum(dim=1) for one in each])
            best = (unlikely - 2.0 * self.mirrors[:, 2].log().to(unlikely)[:, None]).argmin(dim=0)
            return each[best, torch.arange(len(seen))]
        return self.mean.to(seen) + self.own_share.to(seen) / among * (seen - self.seen_mean.to(seen))

    @property
    def log_volume(self) -> float:
        """log √det C."""
        return float(self.spectrum.log().sum())

    def white(self) -> "PublicPrior":
        """The same mean and variance of a pixel, with nothing known of neighbours and colours."""
        variance = self.spectrum.square().mean()
        return PublicPrior(self.mean, self.axes, variance.sqrt().expand(self.spectrum.shape).clone())

    def tensors(self) -> dict[str, Tensor]:
        """What it consists of, by name."""
        return {name: tensor for name, tensor in vars(self).items() if tensor is not None}

    def whitened(self, images: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c h w"]:
        """C^-½(x - μ): independent, of standard deviation 1 where the prior is true."""
        found: Tensor = _coefficients(images - self.mean.to(images), self.axes) / self.spectrum.to(images)
        return found

    def coloured(self, noise: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c h w"]:
        """μ + C^½z: undoes `whitened`."""
        rows, columns = (dct_matrix(size).to(noise) for size in self.mean.shape[1:])
        patterns = rows.T @ (noise * self.spectrum.to(noise)) @ columns
        return self.mean.to(noise) + torch.einsum("dc,bdhw->bchw", self.axes.to(noise), patterns)

    def draw(self, shape: tuple[int, ...], rng: torch.Generator) -> Float[Tensor, "batch c h w"]:
        """Images of the prior within [0, 1], float64."""
        return self.coloured(torch.randn(shape, generator=rng, dtype=torch.float64)).clamp(0.0, 1.0)

    def centre(self, shape: tuple[int, ...]) -> Float[Tensor, "batch c h w"]:
        """The mean, for each of a batch."""
        return self.mean.expand(shape).clone()

    def covariance(
        self, shape: tuple[int, ...], rows: slice, columns: slice
    ) -> Float[Tensor, "window_pixels window_pixels"]:
        """Of a window's pixels, flat in (channel, row, column); `shape` is that of the mean."""
        return window_covariance(self.spectrum.square(), self.axes, rows, columns)


def _mirrors(images: Float[Tensor, "batch c h w"], seen: Float[Tensor, "batch c h w"]) -> Tensor | None:
    """The kinds of mirror images among those seen, the images themselves too; None without, or with anything else."""
    found, left = [], torch.ones(len(images), dtype=torch.bool)
    for kind in images.new_tensor([[0, 0], [0, 1], [1, 0], [1, 1]]):
        same = left & ((_mirrored(images, kind) - seen).abs().amax(dim=(1, 2, 3)) < SAME)
        if bool(same.any()):
            found.append(torch.cat([kind, same.double().mean()[None]]))
        left &= ~same
    several = len(found) > 1 or (len(images) >= COUNTS_AS and any(bool(one[:2].any()) for one in found))
    return torch.stack(found) if several and not bool(left.any()) else None


def _mirrored(images: Float[Tensor, "batch c h w"], kind: Float[Tensor, " entries"]) -> Float[Tensor, "batch c h w"]:
    return images.flip([axis for axis, reversed_ in zip((-2, -1), kind[:2].tolist(), strict=True) if reversed_])


def _mean(images: Float[Tensor, "batch c h w"]) -> Float[Tensor, "c h w"]:
    gray = images.mean(dim=(0, 2, 3), keepdim=True)[0]
    count = len(images)
    found: Tensor = (count * images.mean(dim=0) + COUNTS_AS * gray) / (count + COUNTS_AS)
    return found


def _coefficients(images: Float[Tensor, "batch c h w"], axes: Float[Tensor, "c c"]) -> Float[Tensor, "batch c h w"]:
    rows, columns = (dct_matrix(size).to(images) for size in images.shape[-2:])
    turned = torch.einsum("dc,bchw->bdhw", axes.to(images), images)
    found: Tensor = rows @ turned @ columns.T
    return found


def _by_frequency(squares: Float[Tensor, "c h w"]) -> Float[Tensor, "c h w"]:
    """Each coefficient's mean over those of nearly its own frequency."""
    height, width = squares.shape[1:]
    steps = [torch.arange(size, dtype=torch.float64) / size for size in (height, width)]
    radius = torch.hypot(steps[0][:, None], steps[1][None])
    ring = (radius * min(height, width)).round().long().flatten()
    sums = squares.new_zeros(len(squares), int(ring.max()) + 1).index_add(1, ring, squares.flatten(1))
    return (sums / ring.bincount())[:, ring].view_as(squares)
