"""`fedsim.score`: an attack's result held against the originals."""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

import torch
from jaxtyping import Float
from torch import Tensor

from fedsim.errors import ConfigError
from fedsim.ground_truth import GroundTruth
from fedsim.metrics.image import psnr
from fedsim.metrics.records import ImageScore, Scores
from fedsim.metrics.score import score as score_images
from fedsim.metrics.score import score_labels
from fedsim.result import AttackResult, Certificate, Frame


def score(
    result: AttackResult,
    images: Float[Tensor, "n c h w"],
    labels: Tensor | Sequence[int] | None = None,
    *,
    private: Float[Tensor, "_ _ _ _"] | None = None,
) -> AttackResult:
    """The result with its scores: originals matched with rebuilt images, of which the batch knows no order.

    As many pairs as there can be are exact, then recognisable; then their PSNR is largest (`fedsim.metrics.match`).
    Of more images than the update holds (`batch_size`) the first of them count.

    Args:
        images: in [0, 1], as the model saw them.
        labels: [n] classes; None: labels are not scored.
        private: [n, c, h, w], the client's own images where a defense changed what the model saw.

    Raises:
        ConfigError: images of another shape than the rebuilt ones, or not in [0, 1]; another number of labels, or
            private images of another shape.

    >>> import fedsim, torch
    >>> result = fedsim.AttackResult("mine", "guess", "done", images=torch.full((1, 3, 8, 8), 0.5))
    >>> print(fedsim.score(result, torch.full((1, 3, 8, 8), 0.6)))
    guess: 1 image, 20.0 dB, 0 s
    """
    for key, given in (("images", images), ("private", private)):
        if given is not None and len(given) and not (float(given.min()) >= 0 and float(given.max()) <= 1):
            raise ConfigError(
                key, f"{float(given.min()):.3g} … {float(given.max()):.3g}", "originals with values in [0, 1]"
            )
    if result.status != "done":
        return result
    if private is not None and private.shape != images.shape:
        raise ConfigError("private", tuple(private.shape), f"{tuple(images.shape)}, as images")
    known = None if labels is None else torch.as_tensor(labels)
    if known is not None and known.shape != (len(images),):
        raise ConfigError("labels", tuple(known.shape), f"one class for each of {len(images)} images")
    if result.images is not None and result.images.shape[1:] != images.shape[1:]:
        rebuilt = tuple(result.images.shape[1:])
        raise ConfigError("images", tuple(images.shape[1:]), f"the originals, {rebuilt} as what was rebuilt")
    names = tuple(f"image-{place:05d}" for place in range(len(images)))
    classes = torch.full((len(images),), -1) if known is None else known
    truth = GroundTruth(images.detach().cpu(), classes, names, None if private is None else private.detach().cpu())
    counted = replace(
        result,
        labels=None if known is None else result.labels,
        batch_size=result.batch_size or len(images),  # of one's own result it is not known
    )
    return replace(result, scores=held_against(truth, counted))


def score_against(result: AttackResult, truth: GroundTruth | None) -> AttackResult:
    """The result with its scores; without them where there is no truth, or nothing came of the attack.

    One that cannot be compared (images of another shape) is a failed attack, not a failed run.
    """
    if truth is None or result.status != "done":
        return result
    try:
        return replace(result, scores=held_against(truth, result))
    except (ValueError, TypeError, RuntimeError) as error:
        return replace(
            result,
            status="failed",
            reason=f"its result cannot be scored: {error}",
            certificate=Certificate(),
            images=None,
            own_images=None,
            labels=None,
            trace=(),
            frames=(),
        )


def held_against(truth: GroundTruth, result: AttackResult) -> Scores:
    """Scores of what was rebuilt.

    Of more images than the update holds the first count, as many as it holds: the originals would choose among them,
    which no server has. Of a baseline all count, and luck is what they show.

    Raises:
        ValueError: the reconstructions have another shape than the originals.
    """
    images, own = (
        given if given is None or result.baseline else given[: result.batch_size or None]
        for given in (result.images, result.own_images)
    )
    scores = score_images(truth, images, result.labels, own=own)
    return Scores(scores, score_labels(truth, result.labels), _of_frames(result.frames, scores, truth))


def _of_frames(frames: Sequence[Frame], scores: Sequence[ImageScore], truth: GroundTruth) -> list[list[float | None]]:
    """Every frame is compared as the final reconstruction was matched: a picture keeps its curve."""
    pairs = [(index, one.reconstruction) for index, one in enumerate(scores) if one.reconstruction is not None]
    curves: list[list[float | None]] = [[] for _ in scores]
    originals = truth.shown[[index for index, _ in pairs]]
    for frame in frames if pairs else ():
        rebuilt = frame.images[[candidate for _, candidate in pairs]].to(originals.device).clamp(0, 1)
        values = psnr(rebuilt, originals)
        for (index, _), value in zip(pairs, values.tolist(), strict=True):
            curves[index].append(value if isfinite(value) else None)
    return curves
