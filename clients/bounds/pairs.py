"""Pairs of images that nobody can tell apart: each image beside itself blurred and pixelated, more and more."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from clients.bounds.base import Bound, Party, gaussian_std, refuse_draws, refuse_sums, same_buffers
from clients.bounds.settings import numbers, wholes
from defenses.settings import whole
from fedsim.bounds.robustness_wording import REPORTED
from fedsim.bounds.statement import Panel, Statement, Strip
from fedsim.bounds.two_points import TOLD_APART, blurred, distance, pixelated, right_at_most
from fedsim.errors import NotApplicable

WORDS = f"{100 * TOLD_APART:.0f} %"

OUTSIDE = (
    f"Outside of it: {REPORTED}. The loss of the one image is another than that of the other, and may tell them apart "
    "where these numbers cannot. Noise is a simulation's."
)


class IndistinguishablePairs(Bound):
    """For each image the finest detail that this update's noise leaves to be told apart.

    x' is x blurred or pixelated; the other images of its batch, the labels and the client's own draws are known to
    whoever tells. One forward and backward for each x', exact, nothing is linearised.

    Args:
        blurs: standard deviations of a Gaussian blur in pixels, weakest first.
        blocks: sides of blocks in pixels that take their mean, smallest first.
        images: how many of the audited images.
    """

    kind = "theorem"

    def __init__(
        self,
        blurs: Sequence[float] = (0.5, 1, 2, 4, 8, 16, 32),
        blocks: Sequence[int] = (2, 4, 8, 16, 32, 64, 128, 256),
        images: int = 4,
    ) -> None:
        blur_words, block_words = "standard deviations in pixels, above 0", "sides of blocks in pixels, 2 or more"
        self.blurs = numbers("bound.pairs.blurs", blurs, blur_words, lambda one: 0 < one < math.inf)
        self.blocks = wholes("bound.pairs.blocks", blocks, block_words, lambda one: one >= 2)
        self.images = whole("bound.pairs.images", images, "a whole number, 1 or more", lambda one: one >= 1)

    def __call__(self, parties: Sequence[Party]) -> Statement:
        """Of the first images.

        Raises:
            NotApplicable: the noise is not Gaussian of a known covariance.
        """
        refuse_sums(parties)
        strips: list[Strip] = []
        rows: list[tuple[str, ...]] = []
        most: list[float] = []
        std = 0.0
        for party in parties:
            for place in range(len(party.pictures)):
                if len(strips) == self.images:
                    break
                std, strip, told = self._compare(party, place)
                if not told:
                    raise NotApplicable("no blur up to half of the image's side and no block: nothing to compare with")
                strips.append(strip)
                rows.append((strip.name, self._finest(told), *(f"{rounded_up(right, 3):.3f}" for _, right in told)))
                most.append(max(right for _, right in told))
        apart = sum(right >= TOLD_APART for right in most)
        sentence = (
            f"Behind independent Gaussian noise of standard deviation {std:.3g} in every shared number, whoever is "
            "told that it is one of two named images, at equal odds, says which from these numbers with at most the "
            "probability named for that pair, whatever is known of the images and the model; it says nothing of "
            "another image. "
            f"Of {len(most):,} images {apart:,} can be told at {WORDS} from a coarser version of themselves."
        )
        values = {"std": std, "told_apart": float(apart), "images": float(len(most))}
        coarser = self._coarser(max(parties[0].images.shape[-2:]))
        header = ("image", f"finest told apart at {WORDS}", *(words for words, _ in coarser))
        return Statement("theorem", sentence, values, header, tuple(rows), tuple(strips), note=OUTSIDE)

    def _finest(self, told: Sequence[tuple[str, float]]) -> str:
        """The weakest blur and the smallest blocks that are told apart."""
        apart = [words for words, right in told if right >= TOLD_APART]
        blurs = [words for words in apart if words.startswith("blur")]
        return ", ".join(blurs[:1] + [words for words in apart if words not in blurs][:1]) or "nothing"

    def _coarser(self, side: int) -> "list[tuple[str, tuple[str, float]]]":
        """Of images of this many pixels a side: blurs up to half of it, and one size of blocks that hold all of it."""
        blurs = [(f"blur of {blur:g} px", ("blur", float(blur))) for blur in self.blurs if blur <= side / 2]
        return blurs + [(f"blocks of {block} px", ("block", float(block))) for block in self._blocks(side)]

    def _blocks(self, side: int) -> list[int]:
        smaller, larger = [b for b in self.blocks if b < side], [b for b in self.blocks if b >= side]
        return smaller + larger[:1]

    def _compare(self, party: Party, place: int) -> tuple[float, Strip, list[tuple[str, float]]]:
        """The noise, the strip and how often each x' is told from this image of the batch."""
        refuse_draws(party.runtime.model, party.runtime.settings.training_mode)
        images = party.images
        result = party.train()
        std = gaussian_std(party, result)
        own = party.share(result).tensors
        name = str(party.pictures.ids[place])
        told, panels = [], [Panel(images[place], name)]
        for words, coarser in self._coarser(max(images.shape[-2:])):
            other = party.train(_replaced(images, place, coarser))
            same_buffers(result, other)
            # The same draws on both sides: their difference is that of the noiseless updates, to rounding.
            right = right_at_most(distance(own, party.share(other).tensors, std))
            told.append((words, right))
            caption = f"{words}: {100 * rounded_up(right, 2):.0f} %"
            panels.append(Panel(_replaced(images, place, coarser)[place], caption))
        return std, Strip(name, tuple(panels)), told


def _replaced(images: Tensor, place: int, coarser: tuple[str, float]) -> Tensor:
    """The batch with one image coarser."""
    how, strength = coarser
    one = images[place : place + 1]
    changed = blurred(one, strength) if how == "blur" else pixelated(one, int(strength))
    return torch.cat([images[:place], changed.clamp(0.0, 1.0), images[place + 1 :]])


def rounded_up(probability: float, digits: int) -> float:
    """At most so probable: never said smaller than it is."""
    scale = 10.0**digits
    return min(1.0, math.ceil(probability * scale - 1e-9) / scale)
