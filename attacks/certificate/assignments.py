"""The labels that the client's computation is done once more with, each image its own."""

from collections.abc import Iterator
from itertools import islice

import torch
from jaxtyping import Int
from torch import Tensor

from attacks.label.certified import features_of
from attacks.label.one_example.label import single_label
from attacks.result import Reconstruction
from fedsim.errors import NotApplicable
from fedsim.observation import Observation

MAX_ORDERS = 24
"""Assignments of labels to images that are tried, each by one client's step."""

MAX_LABELS = 100
"""Labels that are tried where none is known for one image."""


def assignments(observation: Observation, result: Reconstruction) -> Iterator[Int[Tensor, " batch"]]:
    """Assignments to try, the likeliest first: given ones, one label of one image, or the certified ones of several."""
    assert result.images is not None
    count = len(result.images)
    if result.labels_given and result.labels is not None and len(result.labels) == count:
        yield result.labels.cpu()
        return
    if count == 1:
        yield from _of_one(observation, result.labels)
        return
    if count > observation.num_classes - 1:
        return
    found = certified_labels(observation)
    if found is not None and len(found) == count:
        yield from map(torch.tensor, islice(_orders(found.tolist()), MAX_ORDERS))


def _of_one(observation: Observation, known: Tensor | None) -> Iterator[Int[Tensor, " batch"]]:
    named = known if known is not None and len(known) == 1 else single_label(observation)
    if named is not None:
        yield named.cpu()
    elif observation.num_classes <= MAX_LABELS:
        yield from torch.arange(observation.num_classes).split(1)


def certified_labels(observation: Observation) -> Int[Tensor, " batch"] | None:
    """Those that the head's equations allow alone; None where they allow several, or say nothing."""
    try:
        found = features_of(observation, torch.device("cpu"), torch.Generator().manual_seed(0))
    except NotApplicable:
        return None
    return found.labels if found.certified else None


def _orders(labels: list[int]) -> Iterator[list[int]]:
    """Those that differ, without a walk through all that do not: labels alike have B! for each."""
    if not labels:
        yield []
    for first in dict.fromkeys(labels):
        rest = labels.copy()
        rest.remove(first)
        yield from ([first, *order] for order in _orders(rest))
