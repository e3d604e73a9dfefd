"""Hold a reconstruction against the truth: match first, then one score per original picture."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedsim.ground_truth import GroundTruth
from fedsim.metrics import image as measures
from fedsim.metrics.labels import assign_labels, exact_batch, label_share
from fedsim.metrics.matching import match, match_both
from fedsim.metrics.perceptual import lpips
from fedsim.metrics.records import MEASURES, ImageScore, LabelScore

UNCHANGED = 1e-6
"""What a picture that nothing changed may differ by from the client's own: its way into the model rounds to float32."""


def score(
    truth: GroundTruth,
    images: Tensor | None,
    labels: Tensor | None,
    *,
    own: Tensor | None = None,
    eight_bit: bool = False,
    perceptual: bool = True,
) -> list[ImageScore]:
    """One score per original, in the order of the truth.

    Args:
        images: [M,C,H,W] in any order; what lies outside [0, 1] is clamped, as no picture can show it.
        labels: [M] in any order, a multiset.
        own: [M,C,H,W] what the attack takes the client's own images for; None: `images`.
        eight_bit: compare after rounding both sides to 256 levels, as pictures read from files are.
        perceptual: also LPIPS, where its weights are on the machine.

    Raises:
        ValueError: the reconstructions have another shape than the originals.
    """
    originals, sources = truth.images.detach(), truth.sources
    distinct = list(dict.fromkeys(sources))
    recovered = [None] * len(distinct) if labels is None else assign_labels(truth.labels[distinct], labels)
    guesses = dict(zip(distinct, recovered, strict=True))
    scores: list[dict[str, Any]] = [
        {"image": name, "label": int(label), "label_recovered": guesses[source]}
        for name, label, source in zip(truth.ids, truth.labels.tolist(), sources, strict=True)
    ]
    if images is not None and len(images) and len(originals):
        if images.shape[1:] != originals.shape[1:]:
            raise ValueError(
                f"reconstructions of shape {tuple(images.shape[1:])} for originals of {tuple(originals.shape[1:])}"
            )
        rebuilt = _as_image(images.detach().double().to(originals.device), eight_bit)
        shown, private_images = (_as_image(kept.detach().double(), eight_bit) for kept in (originals, truth.originals))
        same = (shown - private_images).abs().amax(dim=(1, 2, 3), keepdim=True) <= UNCHANGED
        shown = torch.where(same, private_images, shown)
        for row, unchanged in zip(scores, same.flatten().tolist(), strict=True):
            row["changed"] = not unchanged
        several = len(distinct) < len(sources)
        changes = own is not None and truth.private is not None  # who guessed did not know that nothing was changed
        if several or changes or not torch.equal(shown, private_images):
            guessed = rebuilt if own is None else _as_image(own.detach().double().to(originals.device), eight_bit)
            # As many as images are still fewer than their forms, of which one image would take several.
            fewer = int(rebuilt.isfinite().flatten(1).all(dim=1).sum()) < len(distinct) + several
            groups = [[place for place, source in enumerate(sources) if source == one] for one in distinct]
            private_images = private_images[distinct]
            forms, paired = match_both(shown, rebuilt, private_images, guessed, groups) if fewer else (None, None)
            seen = _compare(shown, rebuilt, perceptual, forms)
            found = _compare(private_images, guessed, perceptual, paired)
            by_source = {distinct[place]: values for place, values in found.items()}
            private = {place: by_source[source] for place, source in enumerate(sources) if source in by_source}
        else:
            private = seen = _compare(shown, rebuilt, perceptual)
        for index, values in seen.items():
            scores[index] |= values
        for index, values in private.items():
            scores[index] |= {f"private_{name}": v for name, v in values.items() if name != "reconstruction"}
    return [ImageScore(**values) for values in scores]


def score_labels(truth: GroundTruth, labels: Tensor | None) -> LabelScore | None:
    """The labels of the client's own pictures, each counted once; None where the attack recovered none."""
    if labels is None:
        return None
    own = truth.labels[list(dict.fromkeys(truth.sources))]
    return LabelScore(exact_batch(own, labels), label_share(own, labels))


def _compare(
    reference: Tensor, rebuilt: Tensor, perceptual: bool, matched: Sequence[int | None] | None = None
) -> dict[int, dict[str, Any]]:
    """The values for each original that has a reconstruction, by the original's index; None: matched here."""
    matched = match(reference, rebuilt) if matched is None else matched
    pairs = [(index, candidate) for index, candidate in enumerate(matched) if candidate is not None]
    if not pairs:
        return {}
    x = reference[[index for index, _ in pairs]]
    y = rebuilt[[candidate for _, candidate in pairs]]
    columns: dict[str, list[Any]] = {"reconstruction": [candidate for _, candidate in pairs]}
    for name in MEASURES:
        columns[name] = getattr(measures, name)(y, x).tolist()
    distances = lpips(y, x) if perceptual and x.shape[1] in (1, 3) else None
    if distances is not None:
        columns["lpips"] = distances.tolist()
    return {index: {name: column[row] for name, column in columns.items()} for row, (index, _) in enumerate(pairs)}


def _as_image(images: Tensor, eight_bit: bool) -> Tensor:
    """Values that a picture can have. NaN stays, so that `match` can leave it out; infinity becomes NaN."""
    pictures = torch.where(images.isfinite(), images, torch.nan).clamp(0, 1)
    return (pictures * 255).round() / 255 if eight_bit else pictures
