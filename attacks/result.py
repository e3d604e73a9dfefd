"""What an attack gives back: images or labels, and what is known of them without the truth."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from fedsim.observation import Observation
from fedsim.result import Certificate as Certificate
from fedsim.result import Frame as Frame


@dataclass(frozen=True)
class Reconstruction:
    """What an attack rebuilt.

    Attributes:
        images: [B,C,H,W] in [0, 1], or None where the attack recovers no pictures.
        labels: [B], a multiset where the order cannot be known, or None.
        trace: rows of whatever the attack measured on its way; those with a `step` become a curve in the report.
        seconds: filled in by `Attack.__call__`.
        frames: pictures from the way, in the order of their steps.
        solves_equations: an image of several satisfies the attack's own equations by itself, whatever the others are,
            or the client's computation on it gives what was shared; or the attack claimed it for one image.
        note: what the user should know of the result, in a sentence; it becomes `AttackResult.reason`.
        labels_given: `labels` were known beforehand: they are no finding, and no `AttackResult` has them.
        of_own: `images` are the client's own as the attack guesses them, whatever the model saw of them.
    """

    images: Tensor | None = None
    labels: Tensor | None = None
    certificate: Certificate = field(default_factory=Certificate)
    trace: tuple[dict[str, float], ...] = ()
    seconds: float = 0.0
    frames: tuple[Frame, ...] = ()
    solves_equations: bool = False
    note: str = ""
    labels_given: bool = False
    of_own: bool = False


@dataclass(frozen=True)
class PsnrBound:
    """At least so many dB against what the model saw, for the only image near this one.

    Attributes:
        psnr: of the root mean square over all pixels; of the worst image of several.
        how: what it rests on, in a few words.
    """

    psnr: float
    how: str


def psnr_of(mse: float) -> float:
    """dB of a mean squared error of [0, 1] pixels, 300 at most; -∞ of one that is not finite."""
    return -10.0 * math.log10(max(mse, 1e-30)) if math.isfinite(mse) else -math.inf


OFF, MOST_OFF = 0.5, 0.02
"""How far out of [0, 1] a pixel is on another scale, and the share of such pixels from which an image is."""


def _off_scale(images: Tensor | None) -> str:
    """What to say of pixels that are 0 … 255 or still normalised; nothing where they are not."""
    if images is None or not len(images):
        return ""
    pixels = images[images.isfinite()]
    if float(((pixels - 0.5).abs() > 0.5 + OFF).double().mean()) <= MOST_OFF:
        return ""
    low, high = float(pixels.min()), float(pixels.max())
    return (
        f"its pixels are {low:.3g} … {high:.3g}, where [0, 1] is wanted: what lies outside is cut off for every score"
    )


def check_result(giver: str, result: object, observation: Observation) -> None:
    """Refuse what cannot be of this update: attacks are anybody's, and what follows takes results at their word.

    More images than are in the update may be samples; of those the first are scored, as many as there are originals.

    Args:
        giver: what gave it, as the error names it.

    Raises:
        TypeError, ValueError: saying what is wanted.
    """
    if not isinstance(result, Reconstruction):
        raise TypeError(f"{giver} gave a {type(result).__name__}: a Reconstruction is wanted")
    images, labels = result.images, result.labels
    if images is not None:
        wanted = f"[B,C,H,W] in [0, 1] with {observation.image_shape} for [C,H,W] is wanted"
        if not isinstance(images, Tensor) or not images.is_floating_point():
            raise TypeError(f"{giver} gave images of type {_kind(images)}: a tensor of floating point {wanted}")
        if images.ndim != 4 or tuple(images.shape[1:]) != tuple(observation.image_shape):
            raise ValueError(f"{giver} gave images of shape {tuple(images.shape)}: {wanted}")
    if labels is not None:
        wanted = f"a tensor [B] of whole numbers, classes 0 … {observation.num_classes - 1}, is wanted"
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
            raise TypeError(f"{giver} gave labels of type {_kind(labels)}: {wanted}")
        if labels.ndim != 1:
            raise ValueError(f"{giver} gave labels of shape {tuple(labels.shape)}: {wanted}")
        if strange := [label for label in labels.tolist() if not 0 <= label < observation.num_classes]:
            raise ValueError(f"{giver} gave the label {strange[0]}: {wanted}")


def _kind(given: object) -> str:
    return str(given.dtype) if isinstance(given, Tensor) else type(given).__name__


def finished(result: Reconstruction, seconds: float) -> Reconstruction:
    """The result as it leaves the worker: on the CPU, without a graph, with its seconds.

    Raises:
        ValueError: none of the pictures has finite values alone; a frame has other pictures than the result.
        TypeError, RuntimeError: what it measured is none of the numbers that a file can hold.
    """
    images = result.images
    if images is not None and len(images) and not images.isfinite().flatten(1).all(dim=1).any():
        raise ValueError("each of its pictures holds NaN or infinity")
    for frame in result.frames:
        if result.images is None or frame.images.shape != result.images.shape:
            expected = "none" if result.images is None else tuple(result.images.shape)
            shape = tuple(frame.images.shape)
            raise ValueError(f"the frame of step {frame.step} is of shape {shape}, the result {expected}")
    return replace(
        result,
        note="; ".join(filter(None, [result.note, _off_scale(images)])),
        images=None if result.images is None else result.images.detach().cpu(),
        labels=None if result.labels is None else result.labels.detach().cpu(),
        certificate=replace(
            result.certificate,
            reason=str(result.certificate.reason),
            values=_measured(result.certificate.values),
        ),
        trace=tuple(_measured(row) for row in result.trace),
        frames=tuple(
            Frame(int(frame.step), frame.images.detach().cpu(), _measured(frame.values)) for frame in result.frames
        ),
        seconds=seconds,
    )


def _measured(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers as JSON holds them, where they are tensors or NumPy's; raises TypeError where it holds none."""
    plain = {
        str(name): value.item() if isinstance(value, Tensor | np.generic | np.ndarray) else value
        for name, value in values.items()
    }
    json.dumps(plain, sort_keys=True)
    return plain


def uncertified(result: Reconstruction, reason: str, **values: float) -> Reconstruction:
    """The result without the certificate that it claimed."""
    kept = {**result.certificate.values, **values}
    return replace(result, certificate=Certificate("uncertified", reason, kept))
